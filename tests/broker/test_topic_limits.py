"""Limits on the size of a topic: what they drop, what they leave, whom they hold back, and what asking costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType

import pytest
import trio
from raw_client import RawClient, after_power_loss, broker_on, connected, records, served, simulated, values
from seeds import tiered
from test_transactions import Owner

from linn.core.broker.broker import Broker
from linn.core.topics.room import Held
from linn.storage_engines.segmented_log.log import SegmentedLog
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

LIMIT = 4096
FINE = "[storage.segmented-log]\nindex_interval_bytes = 512\n"
HEAD = FINE + '[topics.t]\nlease = "1h"\nbytes_max = "4KiB"\nmessage_bytes_max = 1000\noverflow = "drop-head"\n'
DEAD = (
    FINE + 'fsync = "always"\n[topics.t]\nlease = "1h"\ndead_letter = "dead"\n'
    '[topics.dead]\nkind = "{}"\nbytes_max = "4KiB"\nmessage_bytes_max = 3000\noverflow = "{}"\n'
)


def text_of(number: int) -> str:
    return f"{number:<500}"


async def metric(client: RawClient, name: str, topic: str) -> int:
    (found,) = await client.administer("metrics.show", names=[name])
    return {labels[0]: int(value) for labels, value in found["samples"]}[topic]


# --- drop-head --------------------------------------------------------------------------------------------------------


@served(HEAD)
async def test_drop_head_leaves_what_a_consumer_has_and_its_ack_counts(env: SimEnv, broker: Broker) -> None:
    client, size_of = await connected(env), broker.topics["t"].partitions[0].log.size_bytes
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    for number in range(9):
        await client.publish("t", [text_of(number)])
        await trio.sleep(0.1)
    held = await client.delivery()
    assert values(held.batches) == [text_of(0)]
    left = await metric(client, "linn_queue_ready_records", "t")
    assert 2 <= left <= 6, "the oldest that waited were dropped"
    assert await metric(client, "linn_topic_dropped_records_total", "t") == 8 - left
    assert await client.settle(worker, held) == []
    assert client.lost == []
    await client.call(m.Credit(worker, 100))
    found: list[str] = []
    while len(found) < left:
        found += values((event := await client.delivery()).batches)
        assert await client.settle(worker, event) == []
    assert found == [text_of(number) for number in range(9 - left, 9)], "the newest stay"
    await client.publish("t", [text_of(9)])
    await trio.sleep(0.1)
    assert size_of() <= LIMIT + 1000


@served(HEAD)
async def test_drop_head_never_takes_the_records_of_a_consumer_that_holds_the_oldest_for_long(
    env: SimEnv, broker: Broker
) -> None:
    client, room = await connected(env), broker.topics["t"].room
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    held = None
    for number in range(50):
        await client.publish("t", [text_of(number)])
        held = held or await client.delivery()
        await trio.sleep(0.1)
        assert room.held().bytes <= LIMIT
    assert held is not None
    assert await client.settle(worker, held) == []
    assert not [it for it in client.pushed if isinstance(it.message, m.LeaseEnded)]
    for number in range(50, 55):
        await client.publish("t", [text_of(number)])
        await trio.sleep(0.1)
    assert broker.topics["t"].partitions[0].start_offset > 40, "what it held back is trimmed"


# --- dead letters -----------------------------------------------------------------------------------------------------


async def _reject_all(client: RawClient, count: int) -> None:
    worker = (await client.call(m.Subscribe("t"))).subscription
    for number in range(count):
        await client.publish("t", [text_of(number)])
        event = await client.pull(worker, 1, wait_max_ms=1000)
        assert await client.settle(worker, event, m.Verdict.REJECT) == []
        await trio.sleep(0.1)


@pytest.mark.parametrize("overflow", ["block", "reject"])
@simulated
async def test_dead_letters_wait_for_room_in_their_topic_and_come_once(env: SimEnv, overflow: str) -> None:
    async with broker_on(env, DEAD.format("queue", overflow)) as broker:
        client = await connected(env)
        await _reject_all(client, 20)
        await trio.sleep(10)
        dead = broker.topics["dead"].partitions[0].log
        assert dead.size_bytes() <= LIMIT
        waiting = await metric(client, "linn_queue_dead_records", "t")
        assert waiting == 20 - dead.bounds()[1] > 10
        found: list[str] = []
        worker = (await client.call(m.Subscribe("dead"))).subscription
        while event := await client.pull(worker, 1, wait_max_ms=5000):
            if not event.batches:
                break
            found += values(event.batches)
            await client.settle(worker, event)
            assert dead.size_bytes() <= 20 * 1000
        assert found == [text_of(number) for number in range(20)]
        assert await metric(client, "linn_queue_dead_records", "t") == 0


@served(DEAD.format("stream", "drop-head"))
async def test_a_dead_letter_topic_that_drops_its_head_keeps_the_newest_dead_letters(
    broker: Broker, client: RawClient
) -> None:
    await _reject_all(client, 20)
    await trio.sleep(1)
    partition = broker.topics["dead"].partitions[0]
    assert partition.log.size_bytes() <= LIMIT + 1000
    kept = await client.fetch("dead", offset=partition.start_offset, bytes_max=1 << 20)
    assert kept[-1] == text_of(19)
    assert 2 <= len(kept) < 10


@served(DEAD.format("queue", "reject"))
async def test_a_marker_at_the_end_of_a_full_dead_letter_topic_does_not_stop_the_copies(client: RawClient) -> None:
    owner = await Owner.open(client)
    for number in range(4):
        await owner.publish("dead", [text_of(number)])
    await client.publish("t", ["d" * 2000])
    worker = (await client.call(m.Subscribe("t"))).subscription
    await client.settle(worker, await client.pull(worker, 1), m.Verdict.REJECT)
    await trio.sleep(5)
    await owner.end(commit=True)
    await trio.sleep(5)
    assert await metric(client, "linn_queue_dead_records", "t") == 1
    assert await client.taken("dead", count=4) == [text_of(number) for number in range(4)]
    await trio.sleep(12)
    assert await client.taken("dead") == ["d" * 2000]


# --- what is asked for room -------------------------------------------------------------------------------------------


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Count how often a log is asked for its size."""
    count, code = [0], SegmentedLog.size_bytes.__code__

    def profile(frame: FrameType, event: str, _: object) -> None:
        count[0] += event == "call" and frame.f_code is code

    sys.setprofile(profile)
    try:
        yield count
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_publish_asks_as_few_partitions_for_their_size_however_many_there_are(kind: str) -> None:
    asked = []

    async def scenario(env: SimEnv, partitions: int) -> None:
        limits = f'[topics.t]\nkind = "{kind}"\nbytes_max = "1GiB"\npartitions = {partitions}\n'
        async with broker_on(env, limits):
            client = await connected(env)
            await client.publish("t", ["first"], partition=0)
            with counted_calls() as count:
                for number in range(20):
                    await client.publish("t", ["v"], partition=number % 2)
            asked.append(count[0])

    for partitions in (2, 200):
        run_simulation(0, lambda env, partitions=partitions: scenario(env, partitions))
    assert asked[0] == asked[1] <= 40


class Walk:
    """Random steps that change how much a topic holds."""

    def __init__(self, seed: int, broker: Broker, client: RawClient) -> None:
        self.rng, self.topic, self.client = Random(seed), broker.topics["t"], client
        self.worker = 0

    async def step(self) -> None:
        rng, client = self.rng, self.client
        choice = rng.randrange(6)
        if choice < 2:
            value = "v" * rng.randint(1, 900)
            await client.call(m.Publish("t", partition=rng.randrange(4)), [records([value] * rng.randint(1, 3))])
        elif choice < 4:
            event = await client.pull(self.worker, rng.randint(1, 4))
            if event.batches and self.topic.semantics.settles_on_delivery is False:
                await client.settle(self.worker, event, rng.choice([0, 1, 2]))
        elif choice == 4:
            await self.topic.enforce_retention()
        elif rng.random() < 0.2:
            await client.administer("topic.purge", name="t")
        await trio.sleep(0.5)  # What was begun ends.

    def check(self) -> None:
        room = self.topic.room
        parts = [room.held_in(index) for index in self.topic.partitions]
        assert room.held() == Held(sum(part.bytes for part in parts), sum(part.records for part in parts))


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("seed", tiered(range(6), 1))
@simulated
async def test_the_running_sum_is_what_the_partitions_hold_whatever_happens(
    env: SimEnv, seed: int, delivery: str
) -> None:
    kind, overflow = [("queue", "drop-head"), ("queue", "block"), ("both", "drop-head")][seed % 3]
    size = "16KiB" if overflow == "drop-head" else "1MiB"
    limits = f'kind = "{kind}"\noverflow = "{overflow}"\nbytes_max = "{size}"\nmessage_bytes_max = 1000\n'
    text = f'[storage.segmented-log]\nsegment_bytes_max = "4KiB"\n[topics.t]\npartitions = 4\n{limits}'
    for _ in range(2):
        async with broker_on(env, f'{text}delivery = "{delivery}"\nmax_deliveries = 3\n') as broker:
            client = await connected(env)
            walk = Walk(seed, broker, client)
            walk.worker = (await client.call(m.Subscribe("t"))).subscription
            for _ in range(80):
                await walk.step()
                walk.check()


# --- trimming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", tiered(range(8), 1))
@simulated
async def test_a_power_loss_after_trimming_brings_no_settled_record_back_and_calls_none_lost(
    env: SimEnv, seed: int
) -> None:
    """Although the records are gone for good before their settlement is durable."""
    text = '[storage.segmented-log]\nsegment_bytes_max = "4KiB"\n[topics.t]\n'

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            client, (partition_queue,) = await connected(env), broker.topics["t"].subscriptions[""].partition_queues
            for number in range(30):
                await client.publish("t", [text_of(number)])
            await partition_queue.partition.log.sync()
            worker = (await client.call(m.Subscribe("t"))).subscription
            for _ in range(20 + seed):
                await client.settle(worker, await client.pull(worker, 1))
            state = partition_queue.log.state
            assert state is not None
            durable = state.partition.log.durable()
            await partition_queue.partition.log.trim(before=partition_queue.trimming.trimmable_before())
            assert state.partition.log.durable() == durable < state.partition.log.bounds()[1], "the case"
            env.crash()

    assert await env.run_until_death(process)
    async with broker_on(await after_power_loss(env, text), text) as broker:
        client, (partition_queue,) = (
            await connected(broker.env),
            broker.topics["t"].subscriptions[""].partition_queues,
        )  # type: ignore[arg-type]
        start = partition_queue.partition.start_offset
        assert 0 < start <= 20 + seed
        assert partition_queue.subscription.settled_before() >= start
        assert partition_queue.missed_records == 0
        found = await client.taken("t")
        assert found == [text_of(number) for number in range(start, 30)]
