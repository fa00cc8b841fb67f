"""Publishes that are too large to be routed and cut at once: in turns, in order, all or nothing."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from raw_client import RawClient, Refused, connected, records, served

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch, build_from_records
from linn.core.batch.key_hash import key_hash
from linn.core.batch.record import Record
from linn.core.batch.steps import run_steps
from linn.core.broker.broker import Broker
from linn.core.errors.tree import TopicUnknown
from linn.core.loop import long_work
from linn.core.publish import publish_lane
from linn.core.publish.request import PublishRequest
from linn.core.routing import budget as publish_budget
from linn.core.security.access import FullAccess
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

COUNT = 300
CONFIG = """
[exchanges.d]
type = "direct"
[topics.p]
kind = "stream"
partitions = 3
[topics.ab]
kind = "stream"
[[topics.ab.bindings]]
exchange = "d"
key = "a"
[[topics.ab.bindings]]
exchange = "d"
key = "b"
[topics.bc]
kind = "queue"
bytes_max = "1MiB"
[[topics.bc.bindings]]
exchange = "d"
key = "b"
[[topics.bc.bindings]]
exchange = "d"
key = "c"
"""


@pytest.fixture(autouse=True)
def _everything_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_lane, "INLINE_STEPS_MAX", 0)
    monkeypatch.setattr(long_work, "TURN_S", -1.0)  # A turn for others after each step.


def by_keys() -> RecordBatch:
    keys: list[bytes | None] = [b"%d" % n for n in range(COUNT)]
    columns = BatchColumns([b"%d" % n for n in range(COUNT)], 1, 1, keys=keys, key_hashes=list(map(key_hash, keys)))
    return build_batch(columns)


def by_pairs(size: int = 0) -> RecordBatch:
    made = [Record(value=b"%d" % n + bytes(size), routing_key="abcd"[n % 4]) for n in range(COUNT)]
    return build_from_records(made, base_id=1)


async def counts(client: RawClient, *topics: str) -> list[int]:
    return [len(await client.fetch(topic, 0)) for topic in topics]


@served(CONFIG)
async def test_a_large_publish_is_cut_by_its_keys_and_stays_before_the_next_one(
    broker: Broker, client: RawClient
) -> None:
    first = await client.send(m.Publish("p"), [by_keys()])
    second = await client.send(m.Publish("p", partition=0), [records(["last"])])
    answers = {(await client.answer(each)).message.placements[0].copies for each in (first, second)}
    assert answers == {COUNT, 1}
    found = [await client.fetch("p", n) for n in range(3)]
    assert found[0][-1] == "last"
    expected = [[str(n) for n in range(COUNT) if key_hash(b"%d" % n) % 3 == p] for p in range(3)]
    assert [found[0][:-1], *found[1:]] == expected
    assert broker.memory.received.used_bytes == 0


@served(CONFIG)
async def test_unroutable_records_of_a_large_publish_are_named_and_copies_counted(
    broker: Broker, client: RawClient
) -> None:
    answer = await client.call(m.Publish("d", to_exchange=True, mandatory=True), [by_pairs(), by_pairs()])
    lost = [edge for n in range(3, COUNT, 4) for edge in (n, n + 1)]
    assert [(p.copies, p.returned) for p in answer.placements] == [(COUNT, lost)] * 2
    assert await counts(client, "ab", "bc") == [COUNT, COUNT]
    assert broker.memory.received.used_bytes == 0


@served(CONFIG)
async def test_a_large_publish_that_is_refused_stores_nothing(broker: Broker, client: RawClient) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish_budget, "RECORD_STEPS_MAX", 2 * COUNT + 100)
        with pytest.raises(Refused, match=r"limit\.exceeded.*publish fewer records at once"):
            await client.call(m.Publish("d", to_exchange=True), [by_pairs(), by_pairs()])
    assert await counts(client, "ab", "bc") == [0, 0]
    assert broker.memory.received.used_bytes == 0
    assert (await client.call(m.Publish("d", to_exchange=True), [by_pairs()])).placements[0].copies == COUNT


@served(CONFIG)
async def test_a_large_publish_waits_for_room_without_its_parts_and_is_stored_whole(
    broker: Broker, client: RawClient, consumer: RawClient
) -> None:
    await client.call(m.Publish("bc"), [records([bytes(1020 << 10)])])
    batch = by_pairs(size=100)
    number = await client.send(m.Publish("d", to_exchange=True), [batch])
    await trio.testing.wait_all_tasks_blocked()
    assert await counts(consumer, "ab", "bc") == [0, 1]
    assert batch.size < broker.memory.received.used_bytes < 2 * batch.size, "the part that has no room, and no other"
    await consumer.administer("topic.purge", name="bc")
    assert (await client.answer(number)).message.placements[0].copies == COUNT
    assert broker.memory.received.used_bytes == 0


@served(CONFIG)
async def test_while_memory_is_short_one_large_publish_is_taken_apart_after_the_other(
    env: SimEnv, broker: Broker
) -> None:
    broker.memory.received.bytes_max = 1
    clients = [await connected(env) for _ in range(4)]
    numbers = [await client.send(m.Publish("p"), [by_keys()]) for client in clients]
    for client, number in zip(clients, numbers, strict=True):
        assert (await client.answer(number)).message.placements[0].copies == COUNT
    assert broker.memory.received.used_bytes == 0
    assert not broker.publisher.parts_turn.locked()


@served(CONFIG)
async def test_a_plan_does_not_hold_once_a_topic_of_it_has_changed_or_is_gone(broker: Broker, admin: RawClient) -> None:
    altered, steps = broker.publisher.begin(PublishRequest("d", [by_pairs()], to_exchange=True), FullAccess("test"))
    (planned,) = run_steps(steps)
    assert [(each.topic.name, each.batch.count) for each in planned.destinations] == [("ab", 150), ("bc", 150)]
    assert altered.is_current()
    await admin.administer("topic.alter", name="ab", settings={"partitions": 2})
    assert not altered.is_current()
    late, steps = broker.publisher.begin(PublishRequest("d", [by_pairs()], to_exchange=True), FullAccess("test"))
    for _ in range(5):  # All four pairs have been asked about.
        next(steps)
    assert not late.may_have_lost_a_topic()
    await admin.administer("topic.delete", name="bc")
    with pytest.raises(TopicUnknown):
        run_steps(steps)
    assert late.may_have_lost_a_topic()


@served(CONFIG)
async def test_topics_changed_meanwhile_fail_no_publish_to_an_exchange(
    broker: Broker, client: RawClient, admin: RawClient
) -> None:
    number = await client.send(m.Publish("d", to_exchange=True), [by_pairs() for _ in range(100)])
    await admin.administer("topic.alter", name="ab", settings={"partitions": 2})
    await admin.administer("topic.delete", name="bc")
    copies = {placement.copies for placement in (await client.answer(number)).message.placements}
    assert copies in ({COUNT}, {COUNT // 2}), "all of it went where the bindings led at one time"
    assert broker.memory.received.used_bytes == 0


@served(CONFIG)
async def test_a_client_that_leaves_in_the_middle_leaves_nothing(
    broker: Broker, client: RawClient, other: RawClient
) -> None:
    await client.send(m.Publish("d", to_exchange=True), [by_pairs() for _ in range(50)])
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(1):
        while broker.listening.connections > 1:
            await trio.sleep(0.01)
    assert await counts(other, "ab") in ([0], [50 * COUNT // 2])
    assert broker.memory.received.used_bytes == 0
    assert not broker.publisher.parts_turn.locked()
