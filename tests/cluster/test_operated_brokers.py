"""Operations on a cluster of whole brokers: drained and removed nodes, moved topics, and leaders that come back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import Refused
from replicas_seen import ALL, agree, in_sync, replica_at
from sim_store import SimWrite
from simulated_time import simulated
from test_departures import Load

from linn.core.cluster.entries import ClusterEntry, ClusterState, PartEntry, SessionEntry
from linn.core.cluster.operations import Operations
from linn.core.cluster.plan import PartPolicy
from linn.core.cluster.preferred_leaders import IN_SYNC_S
from linn.core.errors.cluster import ClusterRefused
from linn.core.errors.tree import LinnError
from linn.testing.sim_env import SimEnv

MOVED_S = 2.0
"""Time in which a topic that is in sync has another leader."""


def part_of(broker: SimBroker, name: str = "t") -> PartEntry:
    cluster, topic = broker.broker.cluster, broker.broker.topic(name)
    assert cluster is not None
    return cluster.view.state.parts[f"parts/{topic.id}/0"]


async def made(brokers: list[SimBroker], name: str = "t", **settings: object) -> SimBroker:
    """Make a topic; returns its leader when all of its replicas are in sync."""
    client = await brokers[0].client()
    await client.administer("topic.create", name=name, settings={"kind": "stream", **settings})
    leader = (await until_led(brokers, name))[name]
    await until(lambda: len(in_sync(leader, name)) == len(part_of(leader, name).replicas))
    return leader


async def operate(broker: SimBroker, verb: str, **asked: Any) -> Any:
    return await (await broker.client()).administer(f"cluster.{verb}", **asked)


def others(brokers: list[SimBroker], *without: SimBroker) -> list[SimBroker]:
    return [it for it in brokers if it not in without]


async def started(world: BrokerWorld, count: int = 3, *, replicas: int = 1) -> list[SimBroker]:
    """Start brokers; return when each knows all of them."""
    brokers = await world.brokers(count, replicas=replicas)
    await until(lambda: all(len(it.broker.cluster.view.state.sessions) == count for it in brokers if it.broker.cluster))
    return brokers


async def on_three_of_four(world: BrokerWorld) -> tuple[list[SimBroker], tuple[int, ...], int]:
    """Start four brokers and make a topic: the brokers, the nodes with a replica, and the node without one."""
    brokers = await started(world, 4)
    await made(brokers, replicas=3)
    holders = part_of(brokers[0]).replicas
    (fourth,) = {1, 2, 3, 4} - {*holders}
    return brokers, holders, fourth


# --- drain -----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_drained_node_hands_its_topics_over_and_stops_without_a_failed_publish(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, replicas=3)
        leader = await made(brokers)
        door, third = others(brokers, leader)
        load = Load(await door.client(), ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await until(lambda: len(load.confirmed) > 20)
            found = await operate(third, "drain", node=leader.number)
            assert found == {"node": leader.number, "changed": True, "leads": 1, "holds": 1}
            await until(lambda: part_of(door).leader != leader.number, MOVED_S)
            assert leader.number in in_sync(door), "a drained node still holds its replicas"
            await leader.stop()
            count = len(load.confirmed)
            await until(lambda: len(load.confirmed) > count + 20)
            nursery.cancel_scope.cancel()
        assert load.gap_s < 1.0
        (next_leader,) = (await until_led([door, third], "t")).values()
        assert set(load.confirmed) <= set(await (await next_leader.client()).fetch("t"))
        # It is drained over a restart, too: nothing comes back to it.
        await leader.start()
        await until(lambda: len(in_sync(door)) == 3)
        await trio.sleep(2 * IN_SYNC_S)
        assert part_of(door).leader == next_leader.number
        assert (await operate(door, "undrain", node=leader.number))["changed"]
        await until(lambda: part_of(door).leader == part_of(door).replicas[0], 2 * IN_SYNC_S)


@simulated
async def test_a_drained_node_gets_no_new_topics(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, replicas=2)
        await operate(brokers[0], "drain", node=3)
        for number in range(4):
            await made(brokers, f"t{number}", replicas=2)
            assert sorted(part_of(brokers[0], f"t{number}").replicas) == [1, 2]


@simulated
async def test_a_drain_that_would_leave_too_few_is_refused(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world)
        leader = await made(brokers, replicas=1)
        with pytest.raises(Refused, match=r"topic t would have fewer replicas in sync") as refused:
            await operate(brokers[0], "drain", node=leader.number)
        assert refused.value.code == "cluster.refused"
        with pytest.raises(Refused, match="the cluster has no node 7: it has 1, 2, 3"):
            await operate(brokers[0], "drain", node=7)
        idle = [it for it in brokers if it is not leader]
        for broker in idle:
            assert (await operate(brokers[0], "drain", node=broker.number))["changed"]
            assert not (await operate(brokers[0], "drain", node=broker.number))["changed"], "it is done already"
        with pytest.raises(Refused, match="is the last one that is alive and does not drain"):
            await operate(brokers[0], "drain", node=leader.number)


@simulated
async def test_of_two_operators_who_drain_the_last_two_nodes_one_is_refused(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 2)
        outcomes: list[str] = []

        async def drain(at: SimBroker, node: int) -> None:
            try:
                await operate(at, "drain", node=node)
                outcomes.append("drained")
            except Refused as refused:
                outcomes.append(refused.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, brokers[0], 1)
            nursery.start_soon(drain, brokers[1], 2)
        assert sorted(outcomes) == ["cluster.refused", "drained"]


# --- reassignment ----------------------------------------------------------------------------------------------------


@simulated
async def test_a_topic_moves_to_other_nodes_under_load_and_leaves_no_logs(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 5)
        await made(brokers, replicas=2)
        former = list(part_of(brokers[0]).replicas)
        target = [number for number in range(1, 6) if number not in former][:2]
        door = next(it for it in brokers if it.number not in (*former, *target))
        load = Load(await door.client(), ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await until(lambda: len(load.confirmed) > 20)
            found = await operate(door, "reassign", topic="t", nodes=target)
            assert found == {"topic": "t", "changed": True, "replicas": former, "target": target}
            await until(lambda: part_of(door).replicas == tuple(target))
            count = len(load.confirmed)
            await until(lambda: len(load.confirmed) > count + 20)
            nursery.cancel_scope.cancel()
        assert load.gap_s < 1.0
        assert await operate(door, "moves") == []
        leader = (await until_led(brokers, "t"))["t"]
        assert leader.number in target
        found = await (await leader.client()).fetch("t")
        assert set(load.confirmed) <= set(found)
        for number in former:
            await until(lambda number=number: replica_at(brokers[number - 1], "t") is None)
        again = await operate(door, "reassign", topic="t", nodes=target)
        assert not again["changed"]


@simulated
async def test_a_topic_comes_back_to_a_node_that_has_deleted_its_logs(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, former, fourth = await on_three_of_four(world)
        client = await brokers[0].client()
        for number in range(30):
            await client.publish("t", [str(number)], acks=ALL)
        for target in [(former[1], former[2], fourth), former] * 3:
            await operate(brokers[0], "reassign", topic="t", nodes=list(target))
            await until(lambda target=target: part_of(brokers[0]).replicas == target)
        leader = (await until_led(brokers, "t"))["t"]
        await until(lambda: agree([brokers[number - 1] for number in former], "t"))
        assert await (await leader.client()).fetch("t") == [str(number) for number in range(30)]


@simulated
async def test_a_target_that_dies_halfway_holds_the_move_up_until_it_is_cancelled(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, former, fourth = await on_three_of_four(world)
        door = brokers[part_of(brokers[0]).leader - 1]
        target = (fourth, *former[:2])
        dead = brokers[fourth - 1]
        world.env.world.cut(dead.env.name, door.env.name)
        await operate(door, "reassign", topic="t", nodes=list(target))
        dead.env.kill()
        await dead.ended()
        client = await door.client()
        for number in range(20):
            await client.publish("t", [str(number)], acks=ALL)
        assert part_of(door).replicas == (*former, fourth)
        (move,) = await operate(door, "moves")
        assert (move["replicas"], move["target"], move["is_cancelled"]) == ([*former], [*target], False)
        with pytest.raises(Refused, match="is moving to nodes"):
            await operate(door, "reassign", topic="t", nodes=[former[2], *former[:2]])
        assert (await operate(door, "cancel", topic="t"))["changed"]
        await until(lambda: part_of(door).replicas == former and not part_of(door).target)
        assert not (await operate(door, "cancel", topic="t"))["changed"]
        world.env.world.heal(dead.env.name, door.env.name)
        await dead.start()
        await trio.sleep(5)
        assert replica_at(dead, "t") is None
        assert await client.fetch("t") == [str(number) for number in range(20)]


@simulated
async def test_targets_that_can_not_be_are_refused(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, former, fourth = await on_three_of_four(world)
        for nodes, says in [
            ([1, 1, 2], "node 1 is named twice"),
            ([1, 2, 9], "the cluster has no node 9"),
            ([1, 2], "2 nodes are named, and topic t has replicas = 3"),
            ([1, 2, 3, 4], "4 nodes are named"),
        ]:
            with pytest.raises(Refused, match=says):
                await operate(brokers[0], "reassign", topic="t", nodes=nodes)
        with pytest.raises(Refused, match="there is no topic nothing"):
            await operate(brokers[0], "reassign", topic="nothing", nodes=[1, 2, 3])
        await operate(brokers[0], "drain", node=fourth)
        with pytest.raises(Refused, match=f"node {fourth} drains: it gets no topics"):
            await operate(brokers[0], "reassign", topic="t", nodes=[fourth, *former[:2]])
        assert part_of(brokers[0]).replicas == former


@simulated
async def test_a_topic_with_fewer_replicas_gives_the_others_up(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 3)
        leader = await made(brokers, replicas=3, min_in_sync=1)
        await (await brokers[0].client()).administer("topic.alter", name="t", settings={"replicas": 1})
        await until(lambda: part_of(brokers[0]).replicas == (leader.number,))
        for broker in others(brokers, leader):
            await until(lambda broker=broker: replica_at(broker, "t") is None)


@simulated
async def test_who_catches_up_is_slowed_down_to_its_rate_and_members_are_not(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(3, cluster_toml='catch_up_rate = "100kB"')
        await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 3 for it in brokers if it.broker.cluster))
        leader = await made(brokers, replicas=2)
        (third,) = {1, 2, 3} - {*part_of(leader).replicas}
        client = await leader.client()
        for number in range(100):
            began_s = trio.current_time()
            await client.publish("t", [str(number) * 10_000], acks=ALL)
            assert trio.current_time() - began_s < 0.5, "a member of the in-sync set is slowed down"
        replica = replica_at(leader, "t")
        assert replica is not None
        copied = sum(batch.size for batch in await replica.logs[0].log.read(0, 1 << 40))
        began_s = trio.current_time()
        await operate(leader, "reassign", topic="t", nodes=[leader.number, third])
        await until(lambda: part_of(leader).replicas == (leader.number, third), 120)
        took_s = trio.current_time() - began_s
        assert copied / 100_000 * 0.9 - 1 < took_s < copied / 100_000 * 1.1 + 1


# --- removal ---------------------------------------------------------------------------------------------------------


@simulated
async def test_a_node_that_leads_is_removed_and_forgotten_when_it_has_stopped(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 4)
        leader = await made(brokers, replicas=3)
        single = await made(brokers, "single", replicas=1)
        client = await brokers[0].client()
        for name in ("t", "single"):
            await client.publish(name, ["kept"], acks=ALL)
        door = others(brokers, leader, single)[0]
        assert (await operate(door, "remove", node=leader.number))["changed"]
        await until(lambda: all(leader.number not in part_of(door, name).replicas for name in ("t", "single")))
        assert door.broker.cluster is not None
        view = door.broker.cluster.view
        assert leader.number in view.state.nodes, "it is alive"
        await leader.stop()
        await until(lambda: leader.number not in view.state.nodes)
        for name, at in (await until_led(others(brokers, leader), "t", "single")).items():
            assert await (await at.client()).fetch(name) == ["kept"]


# --- preferred leaders -----------------------------------------------------------------------------------------------


@simulated
async def test_leaders_come_back_after_five_minutes_in_sync_and_not_before(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 3)
        leader = await made(brokers, replicas=3)
        door = others(brokers, leader)[0]
        await leader.stop()
        await until(lambda: part_of(door).leader not in (0, leader.number))
        await leader.start()
        await until(lambda: len(in_sync(door)) == 3)
        await trio.sleep(IN_SYNC_S - 20)
        assert part_of(door).leader != leader.number
        # In another session it counts anew.
        await leader.stop()
        await leader.start()
        await until(lambda: len(in_sync(door)) == 3)
        epoch = part_of(door).epoch
        await trio.sleep(IN_SYNC_S - 20)
        assert part_of(door).leader != leader.number
        await until(lambda: part_of(door).leader == leader.number, 60)
        await trio.sleep(2 * IN_SYNC_S)
        assert part_of(door).epoch == epoch + 1, "it comes back once"


# --- elections -------------------------------------------------------------------------------------------------------


@simulated
async def test_an_operator_moves_a_leadership_to_a_member(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world)
        leader = await made(brokers, replicas=3)
        member = others(brokers, leader)[0]
        assert not (await operate(member, "elect", topic="t"))["changed"], "the preferred one leads"
        assert (await operate(member, "elect", topic="t", leader=member.number))["changed"]
        await until(lambda: part_of(member).leader == member.number, MOVED_S)
        assert (await operate(member, "elect", topic="t"))["changed"]
        await until(lambda: part_of(member).leader == leader.number, MOVED_S)
        with pytest.raises(Refused, match="node 9 can't lead topic t now"):
            await operate(member, "elect", topic="t", leader=9)


@simulated
async def test_an_unclean_election_gives_records_up_and_their_node_cuts_them_off(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world)
        leader = await made(brokers, replicas=2, min_in_sync=1)
        follower = next(it for it in brokers if it.number in part_of(leader).replicas and it is not leader)
        client = await leader.client()
        await client.publish("t", ["at both"], acks=ALL)
        asked = {"topic": "t", "leader": follower.number, "unclean": True, "give_up": [leader.number]}
        with pytest.raises(Refused, match="has all of topic t and can lead"):
            await operate(follower, "elect", **asked)
        await follower.stop()
        await until(lambda: in_sync(leader) == (leader.number,))
        await client.publish("t", ["at one"], acks=ALL)
        leader.env.kill()
        await leader.ended()
        await follower.start()
        door = next(it for it in brokers if it not in (leader, follower))
        await until(lambda: leader.number not in door.broker.cluster.view.state.sessions)  # type: ignore[union-attr]
        with pytest.raises(Refused, match=rf"records of nodes {leader.number} are given up: name exactly these"):
            await operate(door, "elect", **{**asked, "give_up": []})
        await trio.sleep(1)
        assert part_of(door).leader == leader.number, "nobody else is elected without the operator"
        for _ in range(2):  # It may be repeated.
            await operate(door, "elect", **asked)
        await until(lambda: part_of(door).leader == follower.number)
        await until_led([follower, door], "t")
        client = await follower.client()
        await client.publish("t", ["after"], acks=ALL)
        await leader.start()
        await until(lambda: len(in_sync(door)) == 2)
        await until(lambda: agree([leader, follower], "t"))
        assert await client.fetch("t") == ["at both", "after"]


@simulated
async def test_an_old_leader_that_leads_on_behind_a_cut_cuts_off_what_the_elected_one_lacks(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world)
        leader = await made(brokers, replicas=2, min_in_sync=1)
        follower = next(it for it in brokers if it.number in part_of(leader).replicas and it is not leader)
        await (await leader.client()).publish("t", ["at both"], acks=ALL)
        await follower.stop()
        await until(lambda: in_sync(leader) == (leader.number,))
        for other in others(brokers, leader):
            world.env.world.cut(leader.env.name, other.env.name)
        world.store.cut(leader.env.name)
        await follower.start()
        door = next(it for it in brokers if it not in (leader, follower))
        await until(lambda: leader.number not in door.broker.cluster.view.state.sessions)  # type: ignore[union-attr]
        asked = {"topic": "t", "leader": follower.number, "unclean": True, "give_up": [leader.number]}
        await operate(door, "elect", **asked)
        await until_led(others(brokers, leader), "t")
        await (await follower.client()).publish("t", ["elected"], acks=ALL)
        with trio.move_on_after(5):
            await (await leader.client()).publish("t", ["given up"], acks=ALL)
        assert part_of(leader).epoch < part_of(follower).epoch
        world.store.heal(leader.env.name)
        for other in others(brokers, leader):
            world.env.world.heal(leader.env.name, other.env.name)
        await until(lambda: len(in_sync(follower)) == 2)
        await until(lambda: agree([leader, follower], "t"))
        await (await follower.client()).publish("t", ["after"], acks=ALL)
        assert await (await follower.client()).fetch("t") == ["at both", "elected", "after"]


# --- versions --------------------------------------------------------------------------------------------------------


def test_the_level_is_raised_only_when_no_older_broker_is_alive() -> None:
    state = ClusterState(1, cluster=ClusterEntry("c", 1))
    for number, newest in [(1, 2), (2, 1)]:
        state.sessions[number] = SessionEntry(f"s{number}", 0, {}, (1, newest))
    operations = Operations(state, {}, lambda _: PartPolicy())
    with pytest.raises(ClusterRefused, match="node 2 runs an older version, which does not know level 2: restart it"):
        operations.upgrade(2)
    state.sessions[2] = SessionEntry("s2", 0, {}, (1, 2))
    change = operations.upgrade(2)
    assert change.write is not None
    assert change.write.changes == {"cluster": ClusterEntry("c", 2)}
    assert change.write.conditions.keys() == {"cluster", "sessions/1", "sessions/2"}
    state.cluster = ClusterEntry("c", 2)
    assert operations.upgrade(2) == (None, 2, 2)


# --- interrupted and repeated ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 6))
@simulated
async def test_a_move_goes_on_when_whoever_writes_it_dies_at_any_of_its_writes(env: SimEnv, at: int) -> None:
    async with broker_world(env) as world:
        brokers, former, fourth = await on_three_of_four(world)
        client = await brokers[0].client()
        for number in range(10):
            await client.publish("t", [str(number)], acks=ALL)
        target = (fourth, *former[1:])
        written = 0

        def kill_writer(write: SimWrite) -> None:
            nonlocal written
            written += any(key.startswith("parts/") for key in write.changes)
            if written == at:
                written += 1
                next(it for it in brokers if it.env.name == write.node).env.kill()

        world.store.on_write = kill_writer
        asked = {"topic": "t", "nodes": list(target)}
        with trio.move_on_after(5), suppress(Refused, LinnError, trio.BrokenResourceError, EOFError):
            await operate(brokers[0], "reassign", **asked)
        await trio.sleep(20)
        world.store.on_write = None
        for broker in brokers:
            if broker.env.is_dead:
                await broker.ended()
                await broker.start()
        await until_led(brokers, "t")
        await until(lambda: all(it.broker.cluster.view.state.parts for it in brokers if it.broker.cluster))
        await until(lambda: not part_of(brokers[0]).target)
        await operate(brokers[0], "reassign", **asked)
        await until(lambda: part_of(brokers[0]).replicas == target and len(part_of(brokers[0]).isr) == 3, 120)
        leader = (await until_led(brokers, "t"))["t"]
        assert await (await leader.client()).fetch("t") == [str(number) for number in range(10)]
        await until(lambda: replica_at(brokers[former[0] - 1], "t") is None)


@pytest.mark.parametrize("is_killed", [False, True])
@simulated
async def test_a_node_is_replaced_with_an_empty_disk_under_load(env: SimEnv, is_killed: bool) -> None:
    """Drained and stopped first, or killed and replaced at once, while the metadata store has its session yet."""
    async with broker_world(env) as world:
        brokers = await started(world)
        leader = await made(brokers, replicas=3)
        door = others(brokers, leader)[0]
        load = Load(await door.client(), ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await until(lambda: len(load.confirmed) > 50)
            if is_killed:
                leader.env.kill()
                await leader.ended()
            else:
                await operate(door, "drain", node=leader.number)
                await until(lambda: part_of(door).leader != leader.number, MOVED_S)
                await leader.stop()
            leader.replace_disk()
            await leader.start()
            await until(lambda: len(in_sync(door)) == 3)
            if not is_killed:
                await operate(door, "undrain", node=leader.number)
            count = len(load.confirmed)
            await until(lambda: len(load.confirmed) > count + 20)
            nursery.cancel_scope.cancel()
        assert load.gap_s < (10.0 if is_killed else 1.0)
        await until(lambda: agree(brokers, "t"))
        assert set(load.confirmed) <= set(await (await (await until_led(brokers, "t"))["t"].client()).fetch("t"))
