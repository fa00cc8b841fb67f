"""Sessions of the gateway, as protocols use them that carry out one request after the other."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from raw_client import RawClient, records, served, values

from linn.core.batch.batch import RecordBatch
from linn.core.broker.broker import Broker
from linn.core.errors.tree import OffsetOutOfRange, SubscriptionWrongKind, TopicReplaced, TopicUnknown
from linn.core.gateway.requests import START_LATEST, FetchRequest, SubscribeRequest
from linn.core.gateway.session import Session
from linn.core.loop.waiting import WaitDeadline
from linn.core.ports.principal import Principal
from linn.core.publish.request import PublishRequest

TOPICS = """
[topics.jobs]
kind = "queue"
bytes_max = "1MiB"
[topics.log]
kind = "stream"
"""
FULL_BYTES = 1020 << 10


def session_of(broker: Broker) -> Session:
    return broker.gateway.session(Principal("127.0.0.1:1"))


async def publish(session: Session, topic: str, *batches: RecordBatch) -> None:
    await session.publish(PublishRequest(topic, batches))


async def fetch(session: Session, offset: int, deadline: WaitDeadline) -> list[str]:
    """The values from an offset of the stream `log` on, after which both ends of the partition are looked at."""
    fetched = await session.fetch(FetchRequest("log", 0, offset, 1 << 20)).read(deadline)
    bounds = session.topic_bounds("log")
    assert bounds is not None
    assert (fetched.start_offset, fetched.high_watermark) == bounds.partitions[0]
    return values(
        [RecordBatch(batch.read()) if not isinstance(batch, RecordBatch) else batch for batch in fetched.batches]
    )


@served(TOPICS)
async def test_a_publish_that_is_cancelled_while_it_waits_for_room_stores_nothing_and_holds_no_memory(
    broker: Broker,
) -> None:
    session = session_of(broker)
    await publish(session, "jobs", records([bytes(FULL_BYTES)]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, session, "jobs", records([bytes(64 << 10)]))
        await trio.testing.wait_all_tasks_blocked()
        assert broker.memory.received.used_bytes > 64 << 10
        nursery.cancel_scope.cancel()
    assert broker.memory.received.used_bytes == 0
    assert broker.topic("jobs").partition(0).high_watermark == 1


@served(TOPICS)
async def test_a_publish_waits_for_room_and_goes_on_when_there_is_some(broker: Broker) -> None:
    session = session_of(broker)
    await publish(session, "jobs", records([bytes(FULL_BYTES)]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, session, "jobs", records([bytes(64 << 10)]))
        await trio.testing.wait_all_tasks_blocked()
        await session.perform("topic.purge", '{"name": "jobs"}')
    assert broker.memory.received.used_bytes == 0
    assert broker.topic("jobs").partition(0).high_watermark == 2


@served(TOPICS)
async def test_a_publish_that_is_refused_raises_its_own_error_and_is_counted_once(broker: Broker) -> None:
    with pytest.raises(TopicUnknown, match="nowhere"):
        await publish(session_of(broker), "nowhere", records(["x"]))
    assert broker.publisher.errors == {"topic.unknown": 1}
    assert broker.memory.received.used_bytes == 0


@served(TOPICS)
async def test_a_fetch_at_the_end_waits_for_a_record(broker: Broker) -> None:
    session, found = session_of(broker), []

    async def read() -> None:
        found.append(await fetch(session, 0, WaitDeadline()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        await publish(session, "log", records(["a", "b"]))
    assert found == [["a", "b"]]
    assert await fetch(session, 0, WaitDeadline(0)) == ["a", "b"]


@served(TOPICS)
async def test_a_fetch_that_finds_nothing_until_its_deadline_is_empty(broker: Broker) -> None:
    begun = trio.current_time()
    assert await fetch(session_of(broker), 0, WaitDeadline(5)) == []
    assert math.isclose(trio.current_time() - begun, 5)
    with pytest.raises(OffsetOutOfRange):
        await fetch(session_of(broker), 7, WaitDeadline(5))


@served(TOPICS)
async def test_no_member_joins_a_topic_that_was_made_again_since_its_log_of_groups_was_made(
    broker: Broker, client: RawClient
) -> None:
    session, request = session_of(broker), SubscribeRequest("log", group="g")
    await session.make_missing(request)
    await client.administer("topic.delete", name="log")
    await client.administer("topic.create", name="log", settings={"kind": "stream"})
    with pytest.raises(TopicReplaced):
        session.subscribe_nowait(request)
    assert not broker.groups.groups
    await session.subscribe(request)


@served(TOPICS)
async def test_a_subscription_is_refused_where_the_topic_is_of_the_other_kind(broker: Broker) -> None:
    session = session_of(broker)
    with pytest.raises(SubscriptionWrongKind, match="topic jobs is a queue: consumers compete"):
        await session.subscribe(SubscribeRequest("jobs", group="g"))
    with pytest.raises(SubscriptionWrongKind, match="choose no start"):
        await session.subscribe(SubscribeRequest("jobs", start=START_LATEST))
