"""Messages that come into their topic later, as both clients publish them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from both_loops import on_both_loops

import linn
from linn.client import Client
from linn.errors import MessageInvalid

NAIVE = datetime(2030, 1, 1)
WRONG: list[dict[str, Any]] = [
    {"delay_ms": -1},
    {"delay_ms": 2**32},
    {"delay_ms": 2**63},
    {"delay_ms": True},
    {"at": -1},
    {"at": 0},
    {"at": 2**63},
    {"at": 1.5},
    {"at": NAIVE},
    {"at": datetime(1969, 12, 31, tzinfo=UTC)},
    {"at": "tomorrow"},
    {"at": 5, "delay_ms": 5},
]


@on_both_loops
async def test_a_message_comes_after_its_delay_or_at_its_time(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer, client.consumer(name) as consumer:
        later = await producer.publish(b"later", delay_ms=300)
        at = datetime.now(UTC) + timedelta(milliseconds=150)
        sooner = await producer.publish(b"sooner", at=at)
        now = await producer.publish(b"now")
        assert (later.partition, later.offset, later.scheduled) == (0, None, "0/0")
        assert (sooner.offset, sooner.scheduled) == (None, "0/1")
        assert (now.offset, now.scheduled) == (0, None)
        assert [(await anext(consumer)).value for _ in range(3)] == [b"now", b"sooner", b"later"]
        assert datetime.now(UTC) >= at


@on_both_loops
async def test_many_messages_come_at_one_time(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer, client.consumer(name) as consumer:
        receipt = await producer.publish_many([b"%d" % number for number in range(100)], at=1)
        assert (receipt.is_scheduled, receipt.partitions) == (True, {0: (0, 99)})
        assert [(await anext(consumer)).value for _ in range(100)] == [b"%d" % number for number in range(100)]


@on_both_loops
async def test_times_that_mean_nothing_are_refused_before_they_are_sent(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer:
        for wrong in WRONG:
            with pytest.raises(MessageInvalid):
                await producer.publish(b"1", **wrong)
            with pytest.raises(MessageInvalid):
                await producer.publish_many([b"1"], **wrong)
            with pytest.raises(MessageInvalid):
                producer.publish_nowait(b"1", **wrong)
    assert (await client.admin.topic(name))["partitions"][0]["end"] == 0


@on_both_loops
async def test_messages_that_come_later_are_listed_moved_and_cancelled(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer, client.consumer(name) as consumer:
        ids = [
            (await producer.publish(b"%d" % number, delay_ms=60_000 + number)).scheduled or "" for number in range(3)
        ]
        found = await client.scheduled(name, count=2)
        assert (found["count"], [each["id"] for each in found["first"]]) == (3, ids[:2])
        assert await client.cancel_scheduled(name, ids[:1]) == [{"id": ids[0], "outcome": "cancelled"}]
        assert await client.move_scheduled(name, [*ids[:2]], delay_ms=1) == [
            {"id": ids[0], "outcome": "gone"},
            {"id": ids[1], "outcome": "moved"},
        ]
        assert (await anext(consumer)).value == b"1"
        await client.move_scheduled(name, ids[2:], at=datetime.now(UTC))
        assert (await anext(consumer)).value == b"2"
        assert (await client.scheduled(name))["count"] == 0
        for wrong in (0, 1_001, "9"):
            with pytest.raises(MessageInvalid):
                await client.scheduled(name, count=wrong)  # type: ignore[arg-type]
        with pytest.raises(MessageInvalid):
            await client.move_scheduled(name, ids, at=NAIVE)


@on_both_loops
async def test_a_message_of_a_transaction_is_scheduled_by_its_commit(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    for ends in (False, True):
        async with client.transaction(name) as transaction:
            receipt = await transaction.publish(name, b"%d" % ends, delay_ms=5)
            assert receipt.scheduled
            if not ends:
                await transaction.abort()
    async with client.consumer(name) as consumer:
        assert (await anext(consumer)).value == b"1"


@on_both_loops
async def test_a_producer_of_one_partition_goes_on_behind_a_delayed_message(client: Client, name: str) -> None:
    await client.admin.create_topic(name, partitions=2)
    async with client.producer(name) as producer, client.consumer(name) as consumer:
        for number in range(6):
            await producer.publish(b"%d" % number, key=b"k", delay_ms=1 if number % 2 else 0)
        found = {(await anext(consumer)).value for _ in range(6)}
        assert found == {b"%d" % number for number in range(6)}


def test_the_blocking_client_publishes_with_a_time(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name)
    with client.producer(name) as producer, client.consumer(name) as consumer:
        assert producer.publish(b"1", at=datetime.now(UTC)).scheduled == "0/0"
        producer.publish_nowait(b"2", delay_ms=50)
        assert [consumer.get(timeout_s=10).value for _ in range(2)] == [b"1", b"2"]
