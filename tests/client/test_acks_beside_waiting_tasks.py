"""Acks leave at once while a task waits for the next record, and are joined where there are many."""

from __future__ import annotations

import anyio
import pytest
import trio
from both_loops import on_both_loops
from scripted_peer import Peer

import linn
from linn.client import Client
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

JOBS = 200


def time_of_jobs(workers: int) -> float:
    """The virtual time that workers take for JOBS of 1 to 7 ms, if each of them holds one."""

    async def scenario(env: SimEnv) -> float:
        done, stop = 0, anyio.Event()

        async def work(message: linn.Message) -> None:
            nonlocal done
            await trio.sleep(0.001 * (1 + message.offset % 7))
            done += 1
            if done == JOBS:
                stop.set()

        async with plugin_broker(env, "[topics.q]\n"), linn.connect(URL, env=env) as client:
            async with client.producer("q") as producer:
                await producer.publish_many([b"v"] * JOBS)
            async with client.consumer("q", prefetch=workers) as consumer:
                began = trio.current_time()
                await consumer.run(work, concurrency=workers, stop=stop)
                return trio.current_time() - began

    return run_simulation(0, scenario)


@pytest.mark.parametrize("workers", [4, 8])
def test_several_workers_with_a_record_each_are_as_fast_as_so_many_with_a_consumer_each(workers: int) -> None:
    assert time_of_jobs(workers) < 1.3 * time_of_jobs(1) / workers


@on_both_loops
async def test_an_ack_beside_a_waiting_task_leaves_at_once_and_later_ones_are_joined(
    peer: Peer, client: Client
) -> None:
    del peer.answers[m.Settle]
    batch = build_from_records([Record(value=b"%d" % number) for number in range(4)], base_id=1)
    batch.stamp(0, 0)
    async with anyio.create_task_group() as tasks, client.consumer("t", prefetch=8) as consumer:
        await peer.sessions[0].send(m.Deliver(1, 0, 1, 1), 0, [batch])
        first, second, third, _ = [await anext(consumer) for _ in range(4)]
        tasks.start_soon(anext, consumer)
        await anyio.wait_all_tasks_blocked()
        first.ack()
        await client._connector.request(m.Ping())
        came = [type(event.message) for event in peer.events[-2:]]
        second.ack()
        third.ack()
        await peer.until(lambda: len(peer.messages(m.Settle)) >= 2)
        peer.answers[m.Settle] = lambda session, event: m.Settled([])
        for event in list(peer.events):
            if type(event.message) is m.Settle:
                await peer.sessions[0].send(m.Settled([]), event.correlation)
        tasks.cancel_scope.cancel()
    assert came == [m.Settle, m.Ping]
    assert [(entry.first, entry.end) for entry in peer.messages(m.Settle)[1].entries] == [(1, 3)]  # type: ignore[attr-defined]
