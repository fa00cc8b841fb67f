"""Time in a queue on replicated logs: only who leads proposes what it brings about, and the next leader has it."""

from __future__ import annotations

import trio
from led_topic import LedTopic, offsets, opened
from trio.testing import MockClock, wait_all_tasks_blocked

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.batch.steps import run_steps
from linn.core.delivery.settlement import Settlement
from linn.core.delivery.vocabulary import Verdict
from linn.core.queue.partition_queue import PartitionQueue

TTL_MS = 5_000


def publish_with_ttl(topic: LedTopic) -> None:
    (partition, *_) = topic.partitions.values()
    partition.append(build_from_records([Record(value=b"own", ttl_ms=TTL_MS)], base_id=1))


async def next_leader(topic: LedTopic) -> tuple[LedTopic, PartitionQueue]:
    """Another broker leads, with what is committed."""
    other = await topic.copied(2)
    topic.lose()
    other.lead(2)
    other.commits_at_once = True
    return other, await other.open_queue()


async def test_the_next_leader_ends_a_delay_when_the_former_one_would_have(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    topic = await opened(nursery, records=1)
    consumer = topic.consumer()
    found, delivery_id, _ = await offsets(consumer)
    nack = Settlement(0, delivery_id, found[0], found[0] + 1, Verdict.NACK, 60_000)
    assert not run_steps(consumer.settle([nack])).refused
    began = trio.current_time()
    topic.commit()
    await trio.sleep(25)
    other, _ = await next_leader(topic)
    assert (await offsets(other.consumer(), wait_s=100))[0] == [0]
    assert 60 <= trio.current_time() - began < 61


async def test_nothing_expires_at_a_broker_that_leads_no_more(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    topic = await opened(nursery, records=1)
    (queue,) = topic.queue.partition_queues
    queue.set_keeping(trims=True, ttl_ms=TTL_MS)
    publish_with_ttl(topic)
    topic.commit()
    other, next_queue = await next_leader(topic)
    before = queue.subscription.statistics()
    await trio.sleep(60)
    assert queue.subscription.statistics() == before, "a follower's clock decides nothing"
    assert queue.expired_records == 0
    next_queue.set_keeping(trims=True, ttl_ms=TTL_MS)
    await trio.sleep(1)
    other.commit()
    await wait_all_tasks_blocked()
    assert next_queue.expired_records == 2
    assert next_queue.subscription.unsettled_count(2) == next_queue.subscription.dead_count


async def test_the_next_leader_knows_the_ttls_of_records(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    topic = await opened(nursery, records=0)
    publish_with_ttl(topic)
    topic.commit()
    await trio.sleep(2)
    _, queue = await next_leader(topic)
    await trio.sleep(2)
    assert queue.expired_records == 0
    await trio.sleep(2)
    assert queue.expired_records == 1
