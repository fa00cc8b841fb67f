"""The controller in simulated time: it elects leaders of many partitions, and is killed, cut off and replaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
import trio
from cluster_world import TIMEOUT_S, ClusterWorld, SimMember, cluster_world, until

from linn.core.cluster.entries import PartEntry
from linn.core.metadata.store import REMOVED
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

NOTICED_S = TIMEOUT_S + 2
PARTS = 250


def run(scenario: Callable[[ClusterWorld], Awaitable[None]], seed: int = 0) -> None:
    async def main(env: SimEnv) -> None:
        async with cluster_world(env, seed) as world:
            await scenario(world)
            check_history(world)

    run_simulation(seed, main)


def check_history(world: ClusterWorld) -> None:
    """Check each write of the store's history against the one before it.

    Only the controller of that moment writes partitions; epochs grow by one with each election; only members of the
    in-sync set with a session are elected; no set becomes empty.
    """
    controller: str | None = None
    sessions: dict[int, str] = {}
    parts: dict[str, PartEntry] = {}
    for write in world.store.history:
        for key, value in write.changes.items():
            if key.startswith("sessions/"):
                number = int(key.removeprefix("sessions/"))
                if value is REMOVED:
                    sessions.pop(number, None)
                else:
                    sessions[number] = value["session"]
        for key, value in write.changes.items():
            if key == "controller":
                controller = None if value is REMOVED else write.node
            elif key.startswith("parts/"):
                after, before = msgspec.convert(value, PartEntry), parts.get(key)
                parts[key] = after
                if before is not None:
                    assert write.node == controller, "a former controller has written"
                    check_election(before, after, sessions)


def check_election(before: PartEntry, after: PartEntry, sessions: dict[int, str]) -> None:
    assert after.epoch == before.epoch + 1
    assert after.leader in before.isr
    assert sessions.get(after.leader) == after.session
    assert {*after.isr} <= {*before.isr}
    assert len(after.isr) >= 1


async def add_parts(world: ClusterWorld, members: list[SimMember], leader: SimMember) -> None:
    """Write topics that a node leads."""
    session = world.store.content()[f"sessions/{leader.number}"].value["session"]
    numbers = [member.number for member in members]
    replicas = (leader.number, *(number for number in numbers if number != leader.number))
    part = PartEntry(leader.number, session, 1, replicas, replicas)
    admin = world.store.client(SimEnv(0, name="admin"))
    entry = {"settings": {"partitions": 1, "replicas": len(replicas)}}
    for first in range(0, PARTS, 25):
        topics = [f"t{number}" for number in range(first, first + 25)]
        placed = {f"parts/{topic}/0": part for topic in topics}
        await admin.put_all({f"topics/{topic}": {"id": topic, **entry} for topic in topics} | placed, {})


def led(world: ClusterWorld, by: set[int]) -> bool:
    """Whether every partition is led by one of these nodes in its present session."""
    content = world.store.content()
    parts = [stored.value for key, stored in content.items() if key.startswith("parts/")]
    assert len(parts) == PARTS
    return all(
        part["leader"] in by
        and f"sessions/{part['leader']}" in content
        and content[f"sessions/{part['leader']}"].value["session"] == part["session"]
        for part in parts
    )


async def three(world: ClusterWorld) -> tuple[SimMember, list[SimMember]]:
    """Start three nodes whose losses are handled; return the controller and the others."""
    members = await world.members()
    await until(lambda: all(node["lost"] == "none" for node in members[0].node.describe()["nodes"]))
    await until(lambda: any(member.node.is_controller for member in members))
    controller = next(member for member in members if member.node.is_controller)
    return controller, [member for member in members if member is not controller]


@pytest.mark.parametrize("seed", range(3))
def test_partitions_of_a_dead_node_are_led_again_soon_after_it_was_given_up(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        controller, others = await three(world)
        await add_parts(world, [controller, *others], others[0])
        await until(lambda: led(world, {others[0].number}))
        others[0].env.kill()
        await until(lambda: f"sessions/{others[0].number}" not in world.store.content(), NOTICED_S)
        await until(lambda: led(world, {controller.number, others[1].number}), 2)

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_that_is_killed_between_its_writes_leaves_the_rest_to_the_next_one(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        controller, others = await three(world)
        await add_parts(world, [controller, *others], others[0])
        await until(lambda: led(world, {others[0].number}))
        others[0].env.kill()
        began = len(world.store.history)

        def has_begun() -> bool:
            return any("parts/t0/0" in write.changes for write in world.store.history[began:])

        while not has_begun():
            await trio.sleep(0.0005)
        controller.env.kill()
        elected = {key for write in world.store.history[began:] for key in write.changes if key.startswith("parts/")}
        assert len(elected) < PARTS, "it was killed between its writes"
        await others[0].start()
        await until(lambda: led(world, {others[0].number, others[1].number}), 2 * NOTICED_S)

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_that_hears_nothing_any_more_changes_nothing(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        controller, others = await three(world)
        await add_parts(world, [controller, *others], others[0])
        await until(lambda: led(world, {others[0].number}))
        world.store.slow_watches(controller.env.name, (0.5, 3.0))
        world.store.loss = 0.1
        others[0].env.kill()
        world.store.cut(controller.env.name, requests=seed % 2 == 0)
        await others[0].start()
        await trio.sleep(2 * NOTICED_S)
        world.store.heal(controller.env.name)
        world.store.end_leases(others[1].env.name)
        await trio.sleep(NOTICED_S)
        world.store.loss = 0.0
        await until(lambda: led(world, {1, 2, 3}), 2 * NOTICED_S)

    run(scenario, seed)
