"""Nodes of a cluster in simulated time: sessions, the controller, and who was given up when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
from cluster_world import TIMEOUT_S, ClusterWorld, SimMember, cluster_world, until

from linn.core.errors.cluster import ClusterEmptied, ClusterForeign, MetadataInvalid, MetadataLater, NodeTaken
from linn.core.metadata.levels import LEVEL
from linn.core.metadata.store import REMOVED
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

NOTICED_S = TIMEOUT_S + 2
"""Time in which a node that is gone is given up, and another one is the controller if it was that."""


def run(scenario: Callable[[ClusterWorld], Awaitable[None]], seed: int = 0) -> None:
    async def main(env: SimEnv) -> None:
        async with cluster_world(env, seed) as world:
            await scenario(world)

    run_simulation(seed, main)


def controller_of(members: list[SimMember]) -> int | None:
    """The controller on which all of these nodes agree."""
    seen = {member.node.describe()["controller"] for member in members}
    return seen.pop() if len(seen) == 1 else None


async def settled(members: list[SimMember]) -> SimMember:
    """Wait until all agree on the controller; return it."""
    await until(lambda: controller_of(members) is not None)
    return next(member for member in members if member.number == controller_of(members))


@pytest.mark.parametrize("seed", range(10))
def test_three_nodes_see_one_another_and_one_controller(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        controller = await settled(members)
        await until(lambda: all(len(member.state.sessions) == 3 for member in members))
        assert [member.node.is_controller for member in members].count(True) == 1
        assert controller.node.is_controller
        for member in members:
            seen = member.node.describe()
            assert seen["node"] == member.number
            assert [(node["node"], node["state"]) for node in seen["nodes"]] == [(n, "alive") for n in (1, 2, 3)]
            assert member.sees(2)["addresses"] == {"native": "machine2:5466"}
        assert len({member.start_number for member in members}) == 3

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_node_is_given_up_in_time_and_comes_back(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        controller = await settled(members)
        killed = next(member for member in members if member is not controller)
        others = [member for member in members if member is not killed]
        killed.env.kill()
        lost_s = trio.current_time()
        await until(lambda: all(member.sees(killed.number)["state"] == "given up" for member in others), NOTICED_S)
        assert trio.current_time() - lost_s > TIMEOUT_S / 2
        before = others[0].sees(killed.number)
        assert before["since_ms"] == before["ends"][-1]["at_ms"] > 0
        assert before["session"] is None
        await killed.start()
        await until(lambda: others[0].sees(killed.number)["state"] == "alive")
        assert others[0].sees(killed.number)["ends"] == before["ends"], "it is still known that it was given up"

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(5))
def test_another_node_becomes_the_controller_when_it_is_killed(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        controller = await settled(members)
        others = [member for member in members if member is not controller]
        epoch = others[0].node.describe()["controller_epoch"] or 0
        controller.env.kill()
        await until(lambda: controller_of(others) in {member.number for member in others}, NOTICED_S)
        assert (others[0].node.describe()["controller_epoch"] or 0) > epoch
        await until(lambda: others[0].sees(controller.number)["state"] == "given up", NOTICED_S)

    run(scenario, seed)


def test_a_stopped_node_has_left_and_was_not_given_up() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        await settled(members)
        stopped, others = members[1], [members[0], members[2]]
        await stopped.stop()
        took_s = await until(lambda: all(member.sees(2)["state"] == "left" for member in others))
        assert took_s < 1, "nobody waits for the end of its lease"
        assert [end["reason"] for end in others[0].sees(2)["ends"]] == ["left"]

    run(scenario)


def test_a_node_that_was_cut_off_registers_again_and_is_known_to_have_been_given_up() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        await settled(members)
        cut, other = members[2], members[0]
        session = other.sees(3)["session"]
        world.store.cut("machine3")
        await until(lambda: other.sees(3)["state"] == "given up", NOTICED_S)
        assert not cut.node.is_registered, "by its own clock, too"
        assert cut.node.describe()["problem"] is not None
        world.store.heal("machine3")
        await until(lambda: other.sees(3)["state"] == "alive")
        assert other.sees(3)["session"] not in (session, None)
        assert [end["session"] for end in other.sees(3)["ends"]] == [session]

    run(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_when_all_leases_end_at_once_all_register_again_and_one_is_the_controller(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        await settled(members)
        world.store.end_all_leases()
        sessions = {member.node.describe()["nodes"][0]["session"] for member in members}

        def is_whole() -> bool:
            return controller_of(members) is not None and all(
                len(member.state.sessions) == 3 and member.node.is_registered for member in members
            )

        await trio.sleep(1)
        await until(is_whole)
        assert all(member.sees(1)["session"] not in sessions for member in members)
        for node in members[0].node.describe()["nodes"]:
            assert [end["reason"] for end in node["ends"]] == ["given up"]

    run(scenario, seed)


def test_a_store_that_is_down_ends_nothing() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        controller = await settled(members)
        world.store.stop()
        await trio.sleep(60)
        for member in members:
            seen = member.node.describe()
            assert seen["problem"] is not None
            assert seen["view_age_s"] > 50
            assert len(seen["nodes"]) == 3, "the last state is still known"
            assert not member.node.is_registered
        world.store.start()
        await until(lambda: all(member.node.is_registered for member in members), 10)
        assert await settled(members) is controller, "no lease has ended"
        await until(lambda: all(member.node.describe()["problem"] is None for member in members))
        assert all(node["ends"] == [] for node in members[0].node.describe()["nodes"])

    run(scenario)


def test_a_start_waits_for_the_store() -> None:
    async def scenario(world: ClusterWorld) -> None:
        world.store.stop()
        member = world.member(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.start)
            await trio.sleep(30)
            assert world.store.history == []
            world.store.start()
        assert member.node.is_registered

    run(scenario)


# --- numbers, folders and stores that do not fit ---------------------------------------------------------------------


def test_a_number_that_is_alive_with_another_folder_is_refused() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members(2)
        with pytest.raises(NodeTaken, match=r"node 1 is alive on machine1 with another data folder"):
            await world.member(1, "intruder").start()
        assert members[1].sees(1)["host"] == "machine1"
        assert members[0].node.is_registered

    run(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_of_two_new_brokers_with_one_number_only_one_stays(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        twins = [world.member(1, name) for name in ("one", "two")]
        refused: list[SimMember] = []

        async def start(member: SimMember) -> None:
            try:
                await member.start()
            except NodeTaken:
                refused.append(member)

        async with trio.open_nursery() as nursery:
            for member in twins:
                nursery.start_soon(start, member)
                await trio.sleep(0)
            with trio.move_on_after(30):
                await until(lambda: bool(refused) or any(member.error is not None for member in twins))
            nursery.cancel_scope.cancel()
        ended = [member for member in twins if member in refused or isinstance(member.error, NodeTaken)]
        assert len(ended) == 1
        owner = ""
        for write in world.store.history:
            if "nodes/1" in write.changes and not write.changes["nodes/1"].get("handled"):
                owner = write.node
            assert not write.node or "sessions/1" not in write.changes or write.node == owner, "another's number"

    run(scenario, seed)


def test_a_broker_with_an_empty_disk_takes_the_number_of_a_dead_one_and_has_lost_all() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        await settled(members)
        members[2].env.kill()
        await until(lambda: members[0].sees(3)["state"] == "given up")
        replacement = world.member(3, "replacement")
        await replacement.start()
        told = [
            write.changes["sessions/3"]["lost"]
            for write in world.store.history
            if isinstance(write.changes.get("sessions/3"), dict)
        ]
        assert told == ["all", "all"]
        await replacement.stop()
        await members[2].start()  # Its folder is no longer this number's.
        last = world.store.content()["sessions/3"].value
        assert last["lost"] == "all"

    run(scenario)


def test_a_loss_is_told_until_the_controller_has_handled_it() -> None:
    async def scenario(world: ClusterWorld) -> None:
        alone = world.member(1)
        await alone.start()
        await until(lambda: alone.node.describe()["nodes"][0]["lost"] == "none")
        assert alone.state.nodes[1].handled == alone.state.sessions[1].session
        await until(lambda: noted(alone) == "none")
        alone.env.crash()
        await alone.start()
        assert world.store.content()["sessions/1"].value["lost"] == "tail"
        await until(lambda: noted(alone) == "none")
        alone.env.kill()
        await alone.start()
        assert world.store.content()["sessions/1"].value["lost"] == "memory"
        await until(lambda: noted(alone) == "none")
        await alone.stop()
        alone.env.crash()
        await alone.start()
        assert world.store.content()["sessions/1"].value["lost"] == "memory", "it was stopped in order"

    def noted(member: SimMember) -> str:
        note = member.node._folder.note
        return note.lost if note is not None else ""

    run(scenario)


@pytest.mark.parametrize("dies", [False, True])
def test_a_handled_loss_is_not_told_again_by_a_node_that_has_not_heard_of_it(dies: bool) -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.member(1).start()
        member = world.member(2)
        world.store.slow_watches("machine2", (30.0, 30.0))
        await member.start()

        def entry(key: str) -> dict[str, Any]:
            found: dict[str, Any] = world.store.content()[key].value
            return found

        told = entry("sessions/2")
        assert told["lost"] == "all"
        await until(lambda: bool(entry("nodes/2")["handled"] == told["session"]))
        if dies:
            member.env.kill()
            await member.start()
        else:
            world.store.end_leases("machine2")
            await until(lambda: "sessions/2" in world.store.content() and entry("sessions/2") != told)
        assert entry("sessions/2")["lost"] == ("memory" if dies else "none")

    run(scenario)


def test_a_killed_process_tells_again_what_was_not_handled() -> None:
    async def scenario(world: ClusterWorld) -> None:
        member = world.member(1)
        await member.start()
        for _ in range(3):
            member.env.kill()
            await member.start()
            told = world.store.content()["sessions/1"].value["lost"]
            assert told == "all" or world.store.content()["nodes/1"].value["handled"] != ""

    run(scenario)


def test_a_folder_of_another_node_is_refused() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members(2)
        members[1].env.kill()
        written = len(world.store.history)
        with pytest.raises(ClusterForeign, match=r"belongs to node 2, and this is node 7"):
            await members[1].start(number=7)
        assert not [write for write in world.store.history[written:] if write.node == "machine2"]

    run(scenario)


def test_a_folder_of_another_cluster_is_refused() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members(1)
        members[0].env.kill()
        other = world.member(2)
        world.store.empty()
        await other.start()
        with pytest.raises(ClusterForeign, match=r"belongs to the cluster \w+, and the metadata store has the cluster"):
            await members[0].start()

    run(scenario)


def test_an_emptied_store_keeps_a_known_node_from_starting_and_ends_none_that_runs() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        await settled(members)
        members[2].env.kill()
        world.store.empty()
        with pytest.raises(ClusterEmptied, match=r"the metadata store has none"):
            await members[2].start()
        await trio.sleep(30)
        assert world.store.content() == {}, "nobody makes another cluster of it"
        seen = members[0].node.describe()
        assert "the metadata store has none" in (seen["problem"] or "")
        assert len(seen["nodes"]) == 3
        assert members[0].error is None

    run(scenario)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("nodes/2", {"folder_id": "x"}, MetadataInvalid),
        ("nodes/02", {"folder_id": "x", "host": "h", "rack": ""}, MetadataInvalid),
        ("nodes/x", {}, MetadataInvalid),
        ("sessions/2", [], MetadataInvalid),
        ("controller", {"node": 0, "session": "s"}, MetadataInvalid),
        ("parts/t/0", {"leader": 1}, MetadataInvalid),
        ("ended/1", {"session": 1}, MetadataInvalid),
        ("counters/starts", "7", MetadataInvalid),
        ("cluster", None, MetadataInvalid),
        ("cluster", {"id": "x", "level": LEVEL + 1, "of a": "later version"}, MetadataLater),
    ],
)
def test_metadata_of_another_shape_or_a_later_version_keeps_a_node_from_starting(
    key: str, value: object, error: type[Exception]
) -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members(1)
        content = world.store.content()
        await members[0].stop()
        admin = world.store.client(SimEnv(0, name="admin"))
        await admin.put_all({key: value}, {})
        with pytest.raises(error, match=key if error is MetadataInvalid else "level 3"):
            await members[0].start()
        assert world.store.content().keys() >= content.keys() - {"sessions/1", "versions/1", "controller"}

    run(scenario)


def test_a_bad_entry_while_nodes_run_is_named_and_the_last_state_stays() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        await settled(members)
        admin = world.store.client(SimEnv(0, name="admin"))
        await admin.put_all({"parts/t/0": {"leader": "nobody"}}, {})
        await until(lambda: all("parts/t/0" in (member.node.describe()["problem"] or "") for member in members))
        assert len(members[0].node.describe()["nodes"]) == 3
        await admin.put_all({"parts/t/0": REMOVED}, {})
        await until(lambda: all(member.node.describe()["problem"] is None for member in members))

    run(scenario)


def test_entries_without_a_cluster_are_not_taken_for_a_new_one() -> None:
    async def scenario(world: ClusterWorld) -> None:
        admin = world.store.client(SimEnv(0, name="admin"))
        await admin.put_all({"counters/starts": 7}, {})
        with pytest.raises(MetadataInvalid, match=r"counters/starts, and no entry"):
            await world.member(1).start()

    run(scenario)


def test_a_session_that_a_copy_of_the_folder_replaced_ends_the_node() -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members(1)
        admin = world.store.client(SimEnv(0, name="admin"))
        session = world.store.content()["sessions/1"].value
        await admin.put_all({"sessions/1": {**session, "session": "of-a-copy"}}, {})
        await members[0].wait_ended()
        assert isinstance(members[0].error, NodeTaken)

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_of_starts_are_used_once_whatever_becomes_of_answers(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        world.store.loss = 0.3
        numbers = []
        members = await world.members()
        for member in members:
            numbers.append(member.start_number)
            member.env.kill()
            await member.start()
            numbers.append(member.start_number)
        assert len({*numbers}) == 6

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(20))
def test_after_faults_all_nodes_are_registered_and_agree(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        members = await world.members()
        world.store.loss = 0.2
        await trio.sleep(20)
        members[seed % 3].env.kill()
        world.store.end_all_leases()
        await trio.sleep(3)
        world.store.stop()
        await trio.sleep(15)
        world.store.start()
        await members[seed % 3].start()
        world.store.lose_watches()
        await trio.sleep(20)
        world.store.loss = 0.0
        await until(lambda: all(member.node.is_registered for member in members), 30)
        await settled(members)
        await until(lambda: all(len(member.state.sessions) == 3 for member in members))
        holders = [write.changes["controller"] for write in world.store.history if "controller" in write.changes]
        for before, after in pairwise(holders):
            assert (before is REMOVED) != (after is REMOVED), "the office is given once, and given up"

    run(scenario, seed)
