"""Consumers of named shared subscriptions, and consumers that take over another's name: async and blocking."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest
from both_loops import on_both_loops

import linn
import linn.sync
from linn.client import Client
from linn.errors import DeliveryFenced, MessageInvalid, SharedBusy, SharedUnknown, SubscriptionWrongKind

VALUES = [f"record {number}" for number in range(20)]


async def _filled(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, kind="stream", lease="30s", max_deliveries=2)
    async with client.producer(topic) as producer:
        await producer.publish_many([value.encode() for value in VALUES])


async def _taken(consumer: linn.client.Consumer) -> list[str]:
    """Ack whatever comes until nothing does for a while."""
    found: list[str] = []
    while True:
        with anyio.move_on_after(0.3) as waiting:
            message = await anext(consumer)
            found.append(message.text)
            await message.ack()
        if waiting.cancelled_caught:
            return found


async def _to_the_end(consumer: linn.client.Consumer) -> None:
    while True:
        await anext(consumer)


@on_both_loops
async def test_consumers_of_a_shared_subscription_compete_and_settle_one_by_one(client: Client, name: str) -> None:
    await _filled(client, name)
    async with (
        client.consumer(name, shared="work", prefetch=5) as one,
        client.consumer(name, shared="work", prefetch=5) as two,
    ):
        first, second = await anext(one), await anext(two)
        assert {first.text, second.text} == {VALUES[0], VALUES[5]}, "both read the only partition"
        await first.nack()
        await second.ack()
        again = await anext(one)
        while again.attempt < 2:
            await again.ack()
            again = await anext(one)
        assert again.text == first.text
        await again.ack()
        found = [*await _taken(one), *await _taken(two)]
    async with client.consumer(name, shared="work") as later:
        assert await _taken(later) == []
    assert set(found) < set(VALUES)
    async with client.consumer(name, shared="audit") as auditor:
        assert await _taken(auditor) == VALUES


@on_both_loops
async def test_a_shared_subscription_begins_where_its_first_consumer_asks(client: Client, name: str) -> None:
    await _filled(client, name)
    after = datetime.fromtimestamp(4_000_000_000, UTC)
    for start, left in (("earliest", 20), ("latest", 0), (15, 5), (after, 0)):
        shared = f"{type(start).__name__}-{left}"
        async with client.consumer(name, shared=shared, start=start) as consumer:  # type: ignore[arg-type]
            assert await _taken(consumer) == VALUES[len(VALUES) - left :]


@on_both_loops
async def test_the_older_consumer_of_a_name_is_told(client: Client, name: str) -> None:
    await _filled(client, name)
    async with client.consumer(name, shared="work", name="w1", prefetch=20) as old:
        held = await anext(old)
        async with client.consumer(name, shared="work", name="w1") as new:
            assert await _taken(new) == VALUES, "also what the older one held"
            with pytest.raises(DeliveryFenced):
                await _to_the_end(old)
            assert held.text == VALUES[0]


@on_both_loops
async def test_an_operator_makes_and_deletes_subscriptions(client: Client, name: str) -> None:
    await _filled(client, name)
    assert await client.admin.create_subscription(name, "late", start=18)
    assert not await client.admin.create_subscription(name, "late")
    (shown,) = await client.admin.subscriptions(name)
    assert (shown["subscription"], shown["unsettled"]) == ("late", 2)
    async with client.consumer(name, shared="late", name="w1") as consumer:
        (one,) = (await client.admin.subscription(name, "late"))["by_consumer"]
        assert one["name"] == "w1"
        with pytest.raises(SharedBusy):
            await client.admin.delete_subscription(name, "late")
        await client.admin.delete_subscription(name, "late", force=True)
        with pytest.raises(SharedUnknown):
            await _to_the_end(consumer)


@on_both_loops
async def test_what_can_not_be_asked_for(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    with pytest.raises(MessageInvalid):
        client.consumer(name, group="g", shared="work")
    with pytest.raises(SubscriptionWrongKind):
        async with client.consumer(name, shared="work"):
            pass


def test_the_blocking_client_consumes_a_shared_subscription(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream")
    with client.producer(name) as producer:
        producer.publish_many([value.encode() for value in VALUES])
    with client.consumer(name, shared="work", name="w1", start=10) as consumer:
        for value in VALUES[10:]:
            message = next(consumer)
            assert message.text == value
            message.ack().wait()
        with client.consumer(name, shared="work", name="w1"), pytest.raises(DeliveryFenced):
            next(consumer)
