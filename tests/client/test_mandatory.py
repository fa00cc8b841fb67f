"""Messages that must reach a topic: who publishes one that reaches none is told, and nobody else is disturbed."""

from __future__ import annotations

import anyio
import pytest
from both_loops import on_both_clients, on_both_loops
from scripted_peer import Peer, Session

import linn
from linn.client import Client
from linn.client.produce.confirmation import is_among, places_among
from linn.core.errors.tree import MessageInvalid, Unroutable
from linn.wire import messages as m
from linn.wire.connection import Event


async def bound(client: linn.Client, name: str) -> str:
    """A topic that takes `name.*` of the exchange `events`; the key that leads there."""
    await client.admin.create_topic(name, kind="stream")
    await client.admin.bind("events", name, f"{name}.*")
    return f"{name}.x"


async def stored(client: linn.Client, name: str) -> list[bytes | None]:
    return [value for batch in (await client.fetch(name, 0, 0)).batches for value in batch.values]


@on_both_loops
async def test_a_mandatory_message_that_reaches_no_topic_is_an_error_of_its_own_call(client: Client, name: str) -> None:
    key = await bound(client, name)
    async with client.producer(exchange="events", linger_ms=20) as producer, anyio.create_task_group() as tasks:

        async def lost(number: int) -> None:
            with pytest.raises(Unroutable, match="events") as refused:
                await producer.publish(b"lost", routing_key=f"nowhere.{number}", mandatory=True)
            assert not refused.value.retriable

        async def found(number: int) -> None:
            receipt = await producer.publish(b"%d" % number, routing_key=key, mandatory=True)
            assert receipt.routed is True

        for number in range(10):
            tasks.start_soon(lost if number % 2 else found, number)
    assert sorted(await stored(client, name)) == [b"0", b"2", b"4", b"6", b"8"]


@on_both_loops
async def test_a_receipt_reports_the_known_placement_of_a_non_mandatory_message(client: Client, name: str) -> None:
    key = await bound(client, name)
    async with client.producer(exchange="events", linger_ms=20) as producer:
        receipts: dict[str, linn.client.Receipt] = {}

        async def publish(routing_key: str) -> None:
            receipts[routing_key] = await producer.publish(b"", routing_key=routing_key)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish, key)
            tasks.start_soon(publish, "nowhere.1")
        await publish("nowhere.2")
        alone = await producer.publish(b"", routing_key=key)
    assert {routing_key: receipt.routed for routing_key, receipt in receipts.items()} == {
        key: None,
        "nowhere.1": None,
        "nowhere.2": False,
    }
    assert receipts[key].offset is None, "the batch did not go there as a whole"
    assert (alone.routed, alone.offset) == (True, 1)
    async with client.producer(name) as direct:
        assert (await direct.publish(b"", mandatory=True)).routed is True


@on_both_clients
async def test_publish_many_names_those_that_reach_no_topic_and_confirms_the_others(client: Client, name: str) -> None:
    key = await bound(client, name)
    keys = [key if number % 7 else "nowhere" for number in range(2_000)]
    values = [b"%d" % number for number in range(2_000)]
    async with client.producer(exchange="events", batch_bytes_max=2_000) as producer:
        with pytest.raises(Unroutable, match="286 messages") as refused:
            await producer.publish_many(values, routing_keys=keys, mandatory=True)
        assert refused.value.indexes == list(range(0, 2_000, 7))
        assert refused.value.__notes__ == ["confirmed of this publish_many: 1,714 messages"]
        receipt = await producer.publish_many(values, routing_keys=keys)
        assert (receipt.count, receipt.copies) == (2_000, 1_714)
        assert (await producer.publish_many(values[:3], routing_keys=key, mandatory=True)).copies == 3
    taken = [value for value, routing_key in zip(values, keys, strict=True) if routing_key == key]
    assert await stored(client, name) == taken * 2 + values[:3]


@on_both_clients
async def test_the_next_flush_tells_of_those_of_publish_nowait_once(client: Client, name: str) -> None:
    key = await bound(client, name)
    async with client.producer(exchange="events", linger_ms=10_000) as producer:
        for number in range(10):
            producer.publish_nowait(b"%d" % number, routing_key=key if number % 2 else "nowhere", mandatory=True)
        with pytest.raises(Unroutable, match="5 messages"):
            await producer.flush()
        await producer.flush()
        producer.publish_nowait(b"x", routing_key="nowhere")
        producer.publish_nowait(b"10", routing_key=key, mandatory=True)
        await producer.flush()
    assert await stored(client, name) == [b"1", b"3", b"5", b"7", b"9", b"10"]


@on_both_loops
async def test_a_flush_does_not_repeat_an_error_that_a_publisher_got(client: Client, name: str) -> None:
    key = await bound(client, name)
    async with client.producer(exchange="events", linger_ms=50) as producer, anyio.create_task_group() as tasks:

        async def lost() -> None:
            with pytest.raises(Unroutable):
                await producer.publish(b"", routing_key="nowhere", mandatory=True)

        tasks.start_soon(lost)
        await anyio.sleep(0)
        producer.publish_nowait(b"", routing_key=key, mandatory=True)
        await producer.flush()


@on_both_loops
async def test_mandatory_without_acks_is_refused(client: Client) -> None:
    async with client.producer(exchange="events", acks="none") as producer:
        with pytest.raises(MessageInvalid, match="acks"):
            await producer.publish(b"", mandatory=True)
        with pytest.raises(MessageInvalid, match="acks"):
            producer.publish_nowait(b"", mandatory=True)
        with pytest.raises(MessageInvalid, match="acks"):
            await producer.publish_many([b""], mandatory=True)


@on_both_loops
async def test_mandatory_messages_share_no_batch_with_others_and_all_keep_their_order(peer: Peer) -> None:
    async with linn.connect(peer.url) as client, client.producer(exchange="e", linger_ms=10_000) as producer:
        for number, mandatory in enumerate([False, False, True, True, False, True, False]):
            producer.publish_nowait(b"%d" % number, mandatory=mandatory)
        await producer.publish_many([b"7", b"8"], mandatory=True)
    published = [(event.message.mandatory, event.batches[0].count) for event in peer.events if event.batches]  # type: ignore[attr-defined]
    assert published == [(False, 2), (True, 2), (False, 1), (True, 1), (False, 1), (True, 2)]
    assert peer.logs["e/-1"] == [b"%d" % number for number in range(9)]


@on_both_loops
async def test_a_producer_of_a_topic_asks_for_nothing_that_can_not_happen(peer: Peer) -> None:
    async with linn.connect(peer.url) as client, client.producer("t", linger_ms=10_000) as producer:
        for mandatory in (False, True, False):
            producer.publish_nowait(b"", mandatory=mandatory)
    assert [(message.mandatory) for message in peer.messages(m.Publish)] == [False]  # type: ignore[attr-defined]


@on_both_loops
async def test_a_withdrawn_message_moves_no_other_ones_return(peer: Peer) -> None:
    """Three messages wait, the first is withdrawn, and the broker returns the second of the two that are left."""

    def publish(session: Session, event: Event) -> m.Message:
        return m.Published([m.Placement(-1, -1, 1, [1, 2])])

    peer.answers[m.Publish] = publish
    async with linn.connect(peer.url) as client, client.producer(exchange="e", linger_ms=10_000) as producer:
        told: dict[bytes, bool] = {}

        async def send(value: bytes) -> None:
            try:
                await producer.publish(value, mandatory=True)
                told[value] = True
            except Unroutable:
                told[value] = False

        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(0.01):
                tasks.start_soon(send, b"second")
                await producer.publish(b"first", mandatory=True)
            tasks.start_soon(send, b"third")
            await anyio.wait_all_tasks_blocked()
            await producer.flush()
    assert [event.batches[0].count for event in peer.events if event.batches] == [2]
    assert told == {b"second": True, b"third": False}


@on_both_loops
async def test_a_batch_of_mandatory_messages_has_no_more_than_a_broker_takes(peer: Peer) -> None:
    async with linn.connect(peer.url) as client:
        async with client.producer(exchange="e", linger_ms=10_000, batch_bytes_max=4 << 20) as producer:
            for _ in range(m.MANDATORY_RECORDS_MAX + 1):
                producer.publish_nowait(b"", mandatory=True)
    assert [event.batches[0].count for event in peer.events if event.batches] == [m.MANDATORY_RECORDS_MAX, 1]


def test_ranges_are_read_with_any_content() -> None:
    assert [place for place in range(12) if is_among([0, 2, 5, 6, 9, 11], place)] == [0, 1, 5, 9, 10]
    assert places_among([0, 2, 5, 6], 4) == [0, 1]
    assert places_among([1, 1 << 32], 3) == [1, 2]
    assert places_among([], 3) == []
