"""Queues with an order whose topic has replicas: their leader is lost while consumers hold leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from broker_world import SimBroker
from raw_client import RawClient, Refused, records, values
from replicas_seen import ALL
from replicated_topic import next_leader, replicated_topic, until_alike
from simulated_time import simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

Fault = Callable[[SimBroker], Awaitable[None]]
"""Takes a leader away, so that another one is elected."""
KEYS = "aabbccdd"


async def kill(leader: SimBroker) -> None:
    leader.env.kill()
    await leader.ended()


def _machines(leader: SimBroker) -> list[str]:
    return [f"machine{number}" for number in (1, 2, 3) if number != leader.number]


async def isolate(leader: SimBroker) -> None:
    """Cut the leader from the store and the other brokers; its clients stay with it."""
    leader.world.store.cut(leader.env.name)
    for machine in _machines(leader):
        leader.world.env.world.cut(leader.env.name, machine)


async def pause(leader: SimBroker) -> None:
    """Hold back everything to and from the leader."""
    await isolate(leader)
    leader.world.env.world.cut(leader.env.name, leader.world.env.name)


async def bring_back(leader: SimBroker) -> None:
    if leader.has_ended:
        await leader.start()
    leader.world.store.heal(leader.env.name)
    for machine in [*_machines(leader), leader.world.env.name]:
        leader.world.env.world.heal(leader.env.name, machine)


FAULTS = pytest.mark.parametrize("fault", [kill, isolate, pause])


Worker = tuple[RawClient, int]
"""A client, and its subscription."""


async def worker_at(broker: SimBroker, **options: Any) -> Worker:
    client = await broker.client()
    return client, (await client.call(m.Subscribe("t", **options))).subscription


async def pulled(worker: Worker, records_max: int = 1) -> tuple[Event, list[str]]:
    event = await worker[0].pull(worker[1], records_max, wait_max_ms=1_000)
    return event, values(event.batches)


async def settled(worker: Worker, event: Event, verdict: m.Verdict = m.Verdict.ACK) -> bool:
    """Whether a settlement is confirmed; if not, it is refused, or gets no answer."""
    with trio.move_on_after(30):
        try:
            return await worker[0].settle(worker[1], event, verdict) == []
        except (Refused, EOFError, trio.BrokenResourceError):
            return False
    return False


async def publish_keys(broker: SimBroker) -> None:
    """Publish two records of each key, named by it and their numbers."""
    client = await broker.client()
    for number, key in enumerate(KEYS):
        await client.call(m.Publish("t", acks=ALL), [records([f"{key}{number}"], key=key.encode())])


@FAULTS
@simulated
async def test_one_record_of_a_key_is_in_flight_and_what_was_settled_does_not_return(env: SimEnv, fault: Fault) -> None:
    async with replicated_topic(env, order="key", lease="5m") as (leader, others):
        await publish_keys(leader)
        workers = [await worker_at(broker) for broker in (leader, *others)]
        held = [await pulled(worker) for worker in workers]
        assert [found for _, found in held] == [["a0"], ["b2"], ["c4"]]
        assert await settled(workers[1], held[1][0])
        held[1] = await pulled(workers[1])
        assert held[1][1] == ["b3"], "the key is free after the ack"
        await trio.sleep(1)
        await fault(leader)
        late = list[bool]()

        async def settle_late(worker: Worker, event: Event) -> None:
            late.append(await settled(worker, event))

        async with trio.open_nursery() as nursery:
            for worker, (event, _) in zip(workers, held, strict=True):
                nursery.start_soon(settle_late, worker, event)
            second = await next_leader(others)
            again = [await worker_at(broker) for broker in others]
            left = [await pulled(again[number % 2], 5) for number in range(3)]
            assert [found for _, found in left] == [["a0", "b3", "c4"], ["d6"], []], "each key once"
            await bring_back(leader)
        assert late == [False] * 3, "a lease ends with the leader that gave it, though it is back"
        for worker, (event, _) in zip(again, left, strict=False):
            assert await settled(worker, event)
        event, found = await pulled(again[0], 5)
        assert found == ["a1", "c5", "d7"]
        assert await settled(again[0], event)
        await until_alike(second, [leader, *others])
        shown = await again[0][0].administer("topic.show", name="t")
        assert shown["queue"]["unsettled"] == 0


@FAULTS
@simulated
async def test_a_key_stays_with_the_consumer_to_which_its_record_was_decided(env: SimEnv, fault: Fault) -> None:
    named = {"two_phase": True, "member": "ann"}
    async with replicated_topic(env, order="key", lease="5m", delivery="exactly-once") as (leader, others):
        await publish_keys(leader)
        ann = await worker_at(others[0], **named)
        event, found = await pulled(ann)
        assert found == ["a0"]
        assert await settled(ann, event, m.Verdict.READY)
        await fault(leader)
        await next_leader(others)
        bob = await worker_at(others[1], two_phase=True, member="bob")
        event, found = await pulled(bob, 5)
        assert found == ["b2", "c4", "d6"]
        assert (await pulled(bob))[1] == []
        ann = await worker_at(others[0], **named)
        repeated, found = await pulled(ann)
        assert (found, repeated.message.phase) == (["a0"], m.Phase.COMMIT)  # type: ignore[union-attr]
        assert await settled(ann, repeated, m.Verdict.DONE)
        assert (await pulled(bob))[1] == ["a1"]


@FAULTS
@simulated
async def test_the_highest_priority_comes_first_at_the_next_leader_also_what_was_leased(
    env: SimEnv, fault: Fault
) -> None:
    async with replicated_topic(env, order="priority", lease="5m") as (leader, others):
        client = await leader.client()
        for number, priority in enumerate([1, 5, 3, 5, 0, 3, 1]):
            await client.call(m.Publish("t", acks=ALL), [records([f"{priority}/{number}"], priority=priority)])
        worker = await worker_at(others[0])
        event, found = await pulled(worker)
        assert await settled(worker, event)
        more = [(await pulled(worker))[1] for _ in range(2)]
        assert [found, *more] == [["5/1"], ["5/3"], ["3/2"]]
        await trio.sleep(1)
        await fault(leader)
        await next_leader(others)
        worker = await worker_at(others[1])
        assert [(await pulled(worker))[1] for _ in range(7)] == [
            *([each] for each in ("5/3", "3/2", "3/5", "1/0", "1/6", "0/4")),
            [],
        ]


async def change_the_catalog(client: RawClient) -> None:
    """Ask for new topics all the time: while the store is away each waits, and what closes a topic waits for that."""
    while True:
        with suppress(Refused):
            await client.administer("topic.create", name="other", settings={})


@pytest.mark.parametrize("order", ["fifo", "key"])
@simulated
async def test_a_leader_that_is_cut_off_delivers_nothing_once_it_has_stepped_down(env: SimEnv, order: str) -> None:
    async with replicated_topic(env, order=order, lease="5m") as (leader, others):
        await publish_keys(leader)
        worker = await worker_at(leader)
        event, found = await pulled(worker)
        assert (found, await settled(worker, event)) == (["a0"], True)
        await isolate(leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_the_catalog, await leader.client())
            second = await worker_at(await next_leader(others))
            event, _ = await pulled(second)
            assert await settled(second, event)
            assert "t" in leader.broker.topics
            assert leader.broker.topics["t"].led_by is None, "the topic waits to be closed"
            with pytest.raises(Refused) as refused:
                await pulled(worker)
            assert refused.value.failed.retriable
            nursery.cancel_scope.cancel()
