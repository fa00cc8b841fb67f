"""Queues and groups whose state log has no room: nobody waits for ever, and nothing grows for as long as that lasts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import trio
from raw_client import (
    ALWAYS,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    records,
    served,
    simulated,
    values,
)

from linn.core.broker.broker import Broker
from linn.core.errors.tree import StorageError
from linn.core.log import state_log
from linn.core.queue.partition_queue import PartitionQueue
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ROOM_BYTES = 1 << 30
AT_MOST_ONCE = ALWAYS + '[topics.t]\ndelivery = "at-most-once"\n'
UNSYNCED = '[storage.fast]\nengine = "segmented-log"\nfsync = "os"\n[topics.t]\nstorage = "fast"\nkind = "%s"\n'
OLD, NEW = [f"old {number}" for number in range(6)], [f"new {number}" for number in range(6)]


def partition_queue_of(broker: Broker) -> PartitionQueue:
    queue = broker.topics["t"].queue
    assert queue is not None
    return queue.partition_queues[0]


async def warm(client: RawClient) -> None:
    """Have one record delivered: the first delivery of all makes the state log, which needs room."""
    await client.publish("t", ["warm"])
    worker = (await client.call(m.Subscribe("t"))).subscription
    await client.settle(worker, await client.pull(worker))
    await client.call(m.Unsubscribe(worker))


# --- at most once ----------------------------------------------------------------------------------------------------


async def publish_where_only_records_have_room(env: SimEnv, client: RawClient) -> None:
    """The handover of these has none."""
    env.disk.capacity_bytes = env.disk.used_bytes + records(["x"]).size
    await client.publish("t", ["x"])
    assert env.disk.room_bytes() == 0


@served(AT_MOST_ONCE)
async def test_at_most_once_a_waiting_consumer_gets_an_error_on_a_full_disk_or_the_record_later(env: SimEnv) -> None:
    first, second, publisher = [await connected(env) for _ in range(3)]
    await warm(publisher)
    for consumer in (first, second):
        await consumer.call(m.Subscribe("t", credit=9))
    await publish_where_only_records_have_room(env, publisher)
    told = (await first.push()).message
    assert isinstance(told, m.Ended)
    assert told.code == "storage.disk_full"
    await trio.sleep(60)
    env.disk.capacity_bytes = ROOM_BYTES
    waited = await second.push()
    if isinstance(waited.message, m.Ended):
        assert waited.message.code == "storage.disk_full"
        await second.call(m.Subscribe("t", credit=9))
        waited = await second.delivery()
    assert values(waited.batches) == ["x"]


@simulated
async def test_at_most_once_records_undelivered_on_a_full_disk_are_delivered_after_a_stop(env: SimEnv) -> None:
    async with broker_on(env, AT_MOST_ONCE) as broker:
        client = await connected(env)
        await client.publish("t", ["before"])
        worker = (await client.call(m.Subscribe("t"))).subscription
        assert values((await client.pull(worker)).batches) == ["before"]
        await publish_where_only_records_have_room(env, client)
        with pytest.raises(Refused, match=r"storage\.disk_full"):
            await client.pull(worker)
        env.disk.capacity_bytes = ROOM_BYTES
        await trio.sleep(5)
        assert partition_queue_of(broker).is_ready()
    async with broker_on(env, AT_MOST_ONCE) as broker:
        client = await connected(env)
        worker = (await client.call(m.Subscribe("t"))).subscription
        assert values((await client.pull(worker)).batches) == ["x"]
        partition_queue_of(broker).subscription.check()


# --- what waits ------------------------------------------------------------------------------------------------------


async def return_often(client: RawClient, worker: int, count: int) -> None:
    """Have the lowest record delivered so often, and return it."""
    for _ in range(count):
        event = await client.pull(worker, 1, wait_max_ms=1_000)
        first = event.batches[0].base_offset
        nack = m.Settlement(0, event.message.delivery_id, first, first + 1, m.Verdict.NACK, 0)  # type: ignore[attr-defined]
        await client.tell(m.Settle(worker, [nack]))


@pytest.mark.parametrize("waiting_bytes_max", [state_log.WAITING_BYTES_MAX, 500])
@simulated
async def test_events_that_waited_for_the_disk_hold_after_a_kill(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch, waiting_bytes_max: int
) -> None:
    monkeypatch.setattr(state_log, "WAITING_BYTES_MAX", waiting_bytes_max)
    text = ALWAYS + "[topics.t]\n"

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            await warm(client)
            await client.publish("t", ["a", "b"])
            worker = (await client.call(m.Subscribe("t"))).subscription
            env.disk.capacity_bytes = env.disk.used_bytes
            held = await client.pull(worker, 1)
            with pytest.raises(Refused, match=r"storage\.disk_full"):
                await client.settle(worker, held)
            await return_often(client, worker, 50)
            env.disk.capacity_bytes = ROOM_BYTES
            await client.settle(worker, await client.pull(worker, 1), m.Verdict.NACK)
            env.kill()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, text) as broker:
        client = await connected(env)
        event = await client.pull((await client.call(m.Subscribe("t"))).subscription)
        assert (values(event.batches), event.message.attempt) == (["b"], 52)  # type: ignore[attr-defined]
        partition_queue_of(broker).subscription.check()


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Count calls of Python functions: a measure of work that other processes do not affect."""
    calls = [0]

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls[0] += event == "call"

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(profiler)


@served(ALWAYS + "[topics.t]\n")
async def test_the_longer_a_disk_is_full_the_same_a_delivery_costs(env: SimEnv, client: RawClient) -> None:
    await warm(client)
    await client.publish("t", ["a"])
    worker = (await client.call(m.Subscribe("t"))).subscription
    env.disk.capacity_bytes = env.disk.used_bytes
    with counted_calls() as early:
        await return_often(client, worker, 20)
    await return_often(client, worker, 150)
    with counted_calls() as late:
        await return_often(client, worker, 20)
    assert late[0] < 1.1 * early[0]


@served(ALWAYS + "[topics.t]\n")
async def test_a_snapshot_takes_the_place_of_much_that_waits(env: SimEnv, broker: Broker) -> None:
    state = partition_queue_of(broker).log.state
    assert state is not None
    most = 0
    env.disk.capacity_bytes = env.disk.used_bytes
    for number in range(10_000):
        with pytest.raises(StorageError):
            state.write(b"event %d" % number, lambda number=number: b"all until %d" % number)  # type: ignore[misc]
        most = max(most, state.waiting)
    assert state_log.WAITING_BYTES_MAX // 100 < most < state_log.WAITING_BYTES_MAX // 50
    env.disk.capacity_bytes = ROOM_BYTES
    start = state.partition.log.bounds()[1]
    state.write(b"event 10000", bytes)
    await state.partition.commit_all()
    found = [record async for record in state.replay()][start:]
    assert found[0].startswith(b"all until ")
    said = int(found[0].split()[-1])
    assert found[1:] == [b"event %d" % number for number in range(said + 1, 10_001)]
    assert state.waiting == 0


# --- after a power loss ----------------------------------------------------------------------------------------------


def lose_power_and_start_on_full_disk(seed: int, kind: str) -> None:
    """Power loss takes records that are settled; the disk is full then, and has room when the broker is killed."""
    text, group = UNSYNCED % kind, "g" if kind == "stream" else ""

    async def settled(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            env.disk.sync_delay_s_max = 0.001
            for value in OLD:
                await client.publish("t", [value])
            assert await client.taken("t", group, len(OLD)) == OLD
            env.crash()

    async def replaced(env: SimEnv) -> None:
        env.disk.capacity_bytes = env.disk.used_bytes
        async with broker_on(env, text):
            client = await connected(env)
            await trio.sleep(1)
            env.disk.capacity_bytes = ROOM_BYTES
            for value in NEW:
                while await client.code_of(await client.send(m.Publish("t"), [records([value])])):
                    await trio.sleep(0.01)
            env.kill()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(settled)
        env = await after_power_loss(env, text)
        assert await env.run_until_death(replaced)
        env = env.restart()
        async with broker_on(env, text):
            assert (await (await connected(env)).taken("t", group))[-len(NEW) :] == NEW

    run_simulation(seed, scenario)


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_start_on_a_full_disk_after_power_loss_drops_events_about_lost_records(kind: str) -> None:
    for seed in range(12):
        lose_power_and_start_on_full_disk(seed, kind)
