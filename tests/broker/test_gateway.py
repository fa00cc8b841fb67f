"""The gateway's own publish and fetch, which protocols use that carry out one request after the other."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from raw_client import broker_on, records, simulated, values

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import OffsetOutOfRange, SubscriptionWrongKind, TopicUnknown
from linn.core.gateway.gateway import ANONYMOUS, START_LATEST, Gateway, SubscribeRequest
from linn.core.loop.waiting import WaitDeadline
from linn.core.publish.request import PublishRequest
from linn.testing.sim_env import SimEnv

TOPICS = """
[topics.jobs]
kind = "queue"
bytes_max = "1MiB"
[topics.log]
kind = "stream"
"""
FULL_BYTES = 1020 << 10


async def publish(gateway: Gateway, topic: str, *batches: RecordBatch) -> None:
    await gateway.publish(ANONYMOUS, PublishRequest(topic, batches))


async def fetch(gateway: Gateway, offset: int, deadline: WaitDeadline) -> list[str]:
    """The values from an offset of the stream `log` on, after which both ends of the partition are looked at."""
    fetched = await gateway.fetch(ANONYMOUS, "log", 0, offset, 1 << 20, deadline)
    assert (fetched.start_offset, fetched.high_watermark) == (0, gateway.partition(ANONYMOUS, "log", 0).high_watermark)
    return values(
        [RecordBatch(batch.read()) if not isinstance(batch, RecordBatch) else batch for batch in fetched.batches]
    )


@simulated
async def test_a_publish_that_is_cancelled_while_it_waits_for_room_stores_nothing_and_holds_no_memory(
    env: SimEnv,
) -> None:
    async with broker_on(env, TOPICS) as broker:
        gateway = broker.gateway
        await publish(gateway, "jobs", records([bytes(FULL_BYTES)]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, gateway, "jobs", records([bytes(64 << 10)]))
            await trio.testing.wait_all_tasks_blocked()
            assert broker.memory.received.used_bytes > 64 << 10
            nursery.cancel_scope.cancel()
        assert broker.memory.received.used_bytes == 0
        assert gateway.partition(ANONYMOUS, "jobs", 0).high_watermark == 1


@simulated
async def test_a_publish_waits_for_room_and_goes_on_when_there_is_some(env: SimEnv) -> None:
    async with broker_on(env, TOPICS) as broker:
        gateway = broker.gateway
        await publish(gateway, "jobs", records([bytes(FULL_BYTES)]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, gateway, "jobs", records([bytes(64 << 10)]))
            await trio.testing.wait_all_tasks_blocked()
            await gateway.perform(ANONYMOUS, "topic.purge", '{"name": "jobs"}')
        assert broker.memory.received.used_bytes == 0
        assert gateway.partition(ANONYMOUS, "jobs", 0).high_watermark == 2


@simulated
async def test_a_publish_that_is_refused_raises_its_own_error_and_is_counted_once(env: SimEnv) -> None:
    async with broker_on(env, TOPICS) as broker:
        with pytest.raises(TopicUnknown, match="nowhere"):
            await publish(broker.gateway, "nowhere", records(["x"]))
        assert broker.publisher.errors == {"topic.unknown": 1}
        assert broker.memory.received.used_bytes == 0


@simulated
async def test_a_fetch_at_the_end_waits_for_a_record(env: SimEnv) -> None:
    async with broker_on(env, TOPICS) as broker:
        gateway, found = broker.gateway, []

        async def read() -> None:
            found.append(await fetch(gateway, 0, WaitDeadline()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert found == []
            await publish(gateway, "log", records(["a", "b"]))
        assert found == [["a", "b"]]
        assert await fetch(gateway, 0, WaitDeadline(0)) == ["a", "b"]


@simulated
async def test_a_fetch_that_finds_nothing_until_its_deadline_is_empty(env: SimEnv) -> None:
    async with broker_on(env, TOPICS) as broker:
        begun = trio.current_time()
        assert await fetch(broker.gateway, 0, WaitDeadline(5)) == []
        assert math.isclose(trio.current_time() - begun, 5)
        with pytest.raises(OffsetOutOfRange):
            await fetch(broker.gateway, 7, WaitDeadline(5))


@simulated
async def test_a_subscription_is_refused_where_the_topic_is_of_the_other_kind(env: SimEnv) -> None:
    async with broker_on(env, TOPICS) as broker:
        gateway = broker.gateway
        with pytest.raises(SubscriptionWrongKind, match="topic jobs is a queue: consumers compete"):
            await gateway.subscribe(ANONYMOUS, SubscribeRequest("jobs", group="g"))
        with pytest.raises(SubscriptionWrongKind, match="choose no start"):
            await gateway.subscribe(ANONYMOUS, SubscribeRequest("jobs", start=START_LATEST))
