"""Consumers and fetches with a filter, from both loops and blocking, and over a lost connection."""

from __future__ import annotations

import anyio
import pytest
from both_loops import on_both_loops
from scripted_peer import Peer

import linn
from linn.client import Client
from linn.core.errors.tree import MessageInvalid, PredicateInvalid, SubscriptionWrongKind
from linn.wire import messages as m

WHERE = "label.late = true"
WANTED = [3, 17, 40]


async def publish_fifty(client: Client, topic: str) -> None:
    """Publish records of which three are wanted, in as few batches as the client likes."""
    async with client.producer(topic) as producer, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(publish_one, producer, number)
            await anyio.sleep(0)


async def publish_one(producer: linn.client.Producer, number: int) -> None:
    await producer.publish(b"%d" % number, labels={"late": number in WANTED})


async def _committed(client: Client, topic: str) -> int:
    """The offset that the group g has committed in a topic of one partition."""
    (offset,) = [row["offset"] for row in (await client.admin.group("g"))["offsets"] if row["topic"] == topic]
    assert offset is not None
    return offset


@on_both_loops
async def test_filtered_records_have_their_own_offsets_and_settle_what_lies_between(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await publish_fifty(client, name)
    fetched = await client.fetch(name, 0, 0, where=WHERE)
    assert [message.offset for batch in fetched.batches for message in batch] == WANTED
    assert fetched.next_offset == fetched.high_watermark == 50
    middle = await client.fetch(name, 0, 18, where=WHERE)
    assert [message.offset for batch in middle.batches for message in batch] == [40]
    async with client.consumer(name, where=WHERE) as reader:
        assert [(await anext(reader)).offset for _ in WANTED] == WANTED
    async with client.consumer(name, group="g", where=WHERE) as member:
        messages = [await anext(member) for _ in WANTED]
        assert [message.value for message in messages] == [b"3", b"17", b"40"]
        await messages[0].ack()
        assert 3 < await _committed(client, name) <= 17
        await messages[1].nack()
        again = [await anext(member) for _ in WANTED[1:]]
        assert [message.offset for message in again] == WANTED[1:]
        for message in again:
            await message.ack()
        assert await _committed(client, name) == 50


def test_a_blocking_consumer_and_fetch_filter(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream")
    with client.producer(name) as producer:
        for number in range(50):
            producer.publish(b"%d" % number, labels={"late": number in WANTED})
    with client.consumer(name, where=WHERE) as consumer:
        assert [next(consumer).offset for _ in WANTED] == WANTED
    fetched = client.fetch(name, 0, 0, where=WHERE)
    assert [message.offset for batch in fetched.batches for message in batch] == WANTED
    assert fetched.next_offset == 50


@on_both_loops
async def test_a_filter_that_is_none_or_not_served_is_refused(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    await client.admin.create_topic(f"{name}-queue")
    for where in ("label.late = ", "size > 3"):
        with pytest.raises(PredicateInvalid):
            await client.fetch(name, 0, 0, where=where)
        with pytest.raises(PredicateInvalid):
            await client.consumer(name, where=where).__aenter__()
    with pytest.raises(SubscriptionWrongKind):
        await client.consumer(f"{name}-queue", where=WHERE).__aenter__()
    with pytest.raises(SubscriptionWrongKind):
        await client.fetch(name, 0, 0, unsettled=True)
    with pytest.raises(MessageInvalid):
        client.consumer(name, where=3)  # type: ignore[arg-type]


@on_both_loops
async def test_the_unsettled_records_of_a_queue_are_fetched(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    await publish_fifty(client, name)
    async with client.consumer(name) as consumer:
        for _ in range(50):
            message = await anext(consumer)
            if message.offset not in WANTED:
                await message.ack()
        fetched = await client.fetch(name, 0, 0, unsettled=True)
        assert [message.offset for batch in fetched.batches for message in batch] == WANTED
        few = await client.fetch(name, 0, 4, unsettled=True, where=WHERE)
        assert [message.offset for batch in few.batches for message in batch] == WANTED[1:]


@on_both_loops
async def test_a_reader_that_got_nothing_goes_on_where_it_was_told_that_it_is(peer: Peer) -> None:
    async with linn.connect(peer.url, backoff_s=0) as client:
        peer.answers[m.Subscribe] = lambda session, event: m.Subscribed(1, m.ConsumerKind.READER, 0)
        topic = m.TopicInfo("t", "stream", [m.PartitionInfo(0, 0, 5_000)], "", 0)
        peer.answers[m.Describe] = lambda session, event: m.Description("peer", [], [topic])
        async with client.consumer("t", where=WHERE):
            await peer.sessions[0].send(m.Deliver(1, 0, 0, 0, 5_000))
            await client._connector.request(m.Ping())
            await peer.cut()
            await peer.until(lambda: len(peer.messages(m.Subscribe)) == 2)
        first, second = peer.messages(m.Subscribe)
        assert isinstance(first, m.Subscribe)
        assert isinstance(second, m.Subscribe)
        assert (first.where, first.start) == (WHERE, -2)
        assert (second.where, second.start, second.partitions) == (WHERE, 5_000, [0])
