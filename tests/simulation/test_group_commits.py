"""The history of a simulation with a commit in flight while the group moves its partition."""

from __future__ import annotations

import trio
from raw_client import broker_on, simulated
from sim_consumers import RawConsumer
from sim_plan import ConsumerPlan, Plan, TopicPlan
from sim_reading import tell_recovered
from sim_world import World

from linn.testing.history import Answered, Asked, Assigned, History, Published
from linn.testing.invariants import check
from linn.testing.sim_env import SimEnv

MOVING = 1
"""The partition that is to go to the second member that joins, until that one leaves."""


def member(world: World, name: str, node: str) -> RawConsumer:
    """A member that commits all that it reads."""
    rates = dict.fromkeys(("nack", "reject", "extend", "late", "leave"), 0.0)
    return RawConsumer(world, ConsumerPlan(name, node, "t", "g", "push", 10, **rates))


def seen_by(consumer: str, history: History) -> list[object]:
    """The shares of a member and its commits, as the history tells them."""
    seen: list[object] = []
    commits: set[int] = set()
    for entry in history.entries:
        match entry.event:
            case Assigned() as event if event.consumer == consumer:
                seen.append(event.partitions)
            case Asked() as event if event.consumer == consumer:
                commits.add(entry.index)
                seen.append("asked")
            case Answered(asked, code) if asked in commits:
                seen.append(f"answered: {code!r}")
    return seen


@simulated
async def test_a_commit_counts_until_its_member_has_let_go_of_the_partition(env: SimEnv) -> None:
    """The broker asks for the partition before it answers the commit; the member lets go, and gets it back."""
    plan = Plan(0)
    plan.topics = [TopicPlan("t", "stream", 2, "always")]
    world = World(plan, env)
    world.life, world.is_closing = 1, True
    head = '[broker]\ndata_dir = "data"\nname = "1"\n[storage.always]\nengine = "segmented-log"\nfsync = "always"\n'
    async with broker_on(env, plan.topics[0].toml(), head) as broker, trio.open_nursery() as nursery:
        tell_recovered(world, broker)
        nursery.start_soon(member(world, "cut off", "a").run)
        await trio.sleep(1)
        env.world.cut("node", "a")
        publisher, _ = await world.connect("probe")
        world.history.add(Published("x", "probe", 0, ("t",)))
        await publisher.publish("t", ["x"], partition=MOVING)
        await trio.sleep(0.1)  # The record is on its way to the member that is cut off.
        with trio.move_on_after(1):
            await member(world, "short", "b").run()
        await trio.sleep(0.1)
        env.world.heal("node", "a")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    check(world.history)
    assert seen_by("cut off#1", world.history)[:5] == [(0, 1), "asked", (0,), "answered: ''", (0, 1)]
