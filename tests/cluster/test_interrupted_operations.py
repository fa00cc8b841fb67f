"""Each operation, while whoever makes one of its writes dies right after it: it is given again, and then it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import Refused
from replicas_seen import ALL
from sim_store import SimWrite
from simulated_time import simulated
from test_operated_brokers import made, operate, others, part_of, started

from linn.core.cluster.entries import ClusterState
from linn.core.errors.tree import LinnError
from linn.testing.sim_env import SimEnv

RECORDS = [str(number) for number in range(10)]


class Operation(NamedTuple):
    """An operation that was asked for."""

    door: SimBroker
    verb: str
    asked: dict[str, Any]
    is_done: Callable[[], bool]


def heal(brokers: list[SimBroker]) -> None:
    """Let all brokers reach each other again."""
    for one in brokers:
        for other in others(brokers, one):
            one.world.env.world.heal(one.env.name, other.env.name)


def state_of(broker: SimBroker) -> ClusterState:
    assert broker.broker.cluster is not None
    return broker.broker.cluster.view.state


async def drain(brokers: list[SimBroker], leader: SimBroker) -> Operation:
    def is_done() -> bool:
        (door, *_) = others(brokers, leader)
        return state_of(door).nodes[leader.number].draining and part_of(door).leader not in (0, leader.number)

    return Operation(others(brokers, leader)[0], "drain", {"node": leader.number}, is_done)


async def undrain(brokers: list[SimBroker], leader: SimBroker) -> Operation:
    prepared = await drain(brokers, leader)
    await operate(prepared.door, "drain", **prepared.asked)
    await until(prepared.is_done)
    door, node = prepared.door, leader.number
    return Operation(door, "undrain", {"node": node}, lambda: not state_of(door).nodes[node].draining)


async def remove(brokers: list[SimBroker], leader: SimBroker) -> Operation:
    door, node = others(brokers, leader)[0], leader.number

    def is_done() -> bool:
        part = part_of(door)
        return node not in part.replicas and not part.target and len(part.isr) == 3

    return Operation(door, "remove", {"node": node}, is_done)


async def cancel(brokers: list[SimBroker], leader: SimBroker) -> Operation:
    """Cancel a reassignment that can't go on, because its target does not reach the leader."""
    former = part_of(leader).replicas
    (fourth,) = (it for it in brokers if it.number not in former)
    world = leader.world.env.world
    world.cut(fourth.env.name, leader.env.name)
    await operate(leader, "reassign", topic="t", nodes=[fourth.number, *former[:2]])

    def is_done() -> bool:
        part = part_of(brokers[0])
        return part.replicas == former and not part.target

    return Operation(others(brokers, fourth, leader)[0], "cancel", {"topic": "t"}, is_done)


async def elect(brokers: list[SimBroker], leader: SimBroker) -> Operation:
    member = next(it for it in others(brokers, leader) if it.number in part_of(leader).replicas)
    door = others(brokers, leader, member)[0]
    asked = {"topic": "t", "leader": member.number}
    return Operation(door, "elect", asked, lambda: part_of(door).leader == member.number)


async def balance(brokers: list[SimBroker], leader: SimBroker) -> Operation:
    for number in range(4):
        await made(brokers, f"t{number}", replicas=2)
    new = (await leader.world.brokers(1))[0]
    brokers.append(new)

    def is_done() -> bool:
        parts = state_of(leader).parts.values()
        held = [sum(broker.number in part.replicas for part in parts) for broker in brokers]
        return not any(part.target for part in parts) and max(held) - min(held) <= 1

    return Operation(brokers[1], "balance", {}, is_done)


CASES: list[tuple[Callable[[list[SimBroker], SimBroker], Awaitable[Operation]], int]] = [
    (drain, 3),
    (undrain, 1),
    (remove, 7),
    (cancel, 2),
    (elect, 2),
    (balance, 5),
]
"""Operations, and the number of their writes."""


async def interrupted(world: BrokerWorld, brokers: list[SimBroker], operation: Operation, at: int) -> None:
    """Carry an operation out; whoever makes its write of this number dies then, and is started again later."""
    written, killed = 0, False

    def kill_writer(write: SimWrite) -> None:
        nonlocal written, killed
        written += any(key.startswith(("parts/", "nodes/")) for key in write.changes)
        if written == at and not killed:
            killed = True
            next(it for it in brokers if it.env.name == write.node).env.kill()

    world.store.on_write = kill_writer
    with trio.move_on_after(5), suppress(Refused, LinnError, trio.BrokenResourceError, EOFError):
        await operate(operation.door, operation.verb, **operation.asked)
    await trio.sleep(20)
    world.store.on_write = None
    assert killed, "it has fewer writes"
    for broker in brokers:
        if broker.env.is_dead:
            await broker.ended()
            await broker.start()


@pytest.mark.parametrize(
    ("ask", "at"),
    [(ask, at) for ask, count in CASES for at in range(1, count + 1)],
    ids=lambda it: getattr(it, "__name__", None),
)
@simulated
async def test_an_operation_that_is_cut_off_at_any_write_is_given_again(
    env: SimEnv, ask: Callable[[list[SimBroker], SimBroker], Awaitable[Operation]], at: int
) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 4)
        leader = await made(brokers, replicas=3)
        client = await leader.client()
        for value in RECORDS:
            await client.publish("t", [value], acks=ALL)
        operation = await ask(brokers, leader)
        await interrupted(world, brokers, operation, at)
        await until_led(brokers, "t")
        await until(lambda: all(state_of(it).parts for it in brokers))
        heal(brokers)
        await operate(operation.door, operation.verb, **operation.asked)
        await until(operation.is_done, 120)
        assert not (await operate(operation.door, operation.verb, **operation.asked))["changed"]
        found = (await until_led(brokers, "t"))["t"]
        assert await (await found.client()).fetch("t") == RECORDS
