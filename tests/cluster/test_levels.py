"""The level of a cluster: brokers of two versions serve together, and use what is new when an operator says so."""

from __future__ import annotations

from importlib.metadata import version

import msgspec
import pytest
import trio
from broker_world import SimBroker, broker_world
from cluster_world import TIMEOUT_S, cluster_world, until
from raw_client import Refused
from replicas_seen import in_sync
from sim_store import SimWrite
from simulated_time import simulated
from test_clients_at_leaders import client_of
from test_operated_brokers import made, operate

from linn.core.cluster.entries import ClusterEntry, ClusterState, NodeEntry, PartEntry, SessionEntry
from linn.core.cluster.operations import Operations
from linn.core.cluster.plan import PartPolicy
from linn.core.errors.cluster import LevelTooLow, MetadataInvalid, MetadataLater
from linn.core.errors.tree import FeatureUnsupported
from linn.core.metadata.levels import LEVEL, LEVEL_MIN
from linn.core.metadata.store import NO_LEASE
from linn.testing.sim_env import SimEnv

OLD, NEW = LEVEL_MIN, LEVEL


def level_at(broker: SimBroker) -> int:
    assert broker.broker.cluster is not None
    return broker.broker.cluster.view.state.level


async def upgraded(broker: SimBroker, brokers: list[SimBroker]) -> None:
    """Raise the level, and wait until all brokers know it."""
    assert await operate(broker, "upgrade") == {"changed": True, "before": OLD, "level": NEW}
    await until(lambda: {level_at(it) for it in brokers} == {NEW})


@simulated
async def test_a_new_cluster_has_the_newest_level_and_each_broker_tells_its_version(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 2 for it in brokers if it.broker.cluster))
        status = await operate(brokers[0], "status")
        assert status["level"] == NEW
        told = [(node["version"], node["levels"]) for node in status["nodes"]]
        assert told == [(version("linn"), [OLD, NEW])] * 2
        await brokers[1].stop()
        await until(lambda: 2 not in brokers[0].broker.cluster.view.state.versions)  # type: ignore[union-attr]
        (left,) = [node for node in (await operate(brokers[0], "status"))["nodes"] if node["node"] == 2]
        assert (left["version"], left["levels"]) == ("", [])


@simulated
async def test_brokers_are_upgraded_one_after_the_other_under_load_and_the_level_comes_last(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(3, level=OLD, replicas=3)
        await made(brokers, replicas=3)
        confirmed, read = list[bytes](), list[bytes | None]()

        async def publish() -> None:
            async with client_of(world, *brokers) as client, client.producer("t", acks="all") as producer:
                while True:
                    value = b"%d" % len(confirmed)
                    await producer.publish(value)
                    confirmed.append(value)
                    await trio.sleep(0.01)

        async def consume() -> None:
            async with client_of(world, *brokers[::-1]) as client, client.consumer("t", start="earliest") as reader:
                async for message in reader:
                    read.append(message.value)

        async def go_on() -> None:
            count = len(confirmed) + 50
            await until(lambda: len(confirmed) > count and len(read) > count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(consume)
            for number, broker in enumerate(brokers):
                await go_on()
                await broker.stop()
                broker.level = NEW
                await broker.start()
                await until(lambda: all(len(in_sync(it)) == 3 for it in brokers))
                await go_on()
                if number < 2:
                    with pytest.raises(Refused, match=r"cluster.refused"):
                        await operate(broker, "upgrade")
            assert {level_at(it) for it in brokers} == {OLD}
            await upgraded(brokers[1], brokers)
            await go_on()
            nursery.cancel_scope.cancel()
        assert read[: len(confirmed)] == confirmed
        async with client_of(world, *brokers) as client, client.producer("t") as producer:
            await producer.publish(b"later", delay_ms=1_000)


@simulated
async def test_a_cluster_of_an_older_level_refuses_what_its_brokers_may_not_know(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1, level=OLD)
        await first.stop()
        first.level = NEW
        await first.start()
        brokers = [first, *await world.brokers(2)]
        await made(brokers)
        transient = {"settings": {"lifetime": "broker"}}
        async with client_of(world, *brokers) as client, client.producer("t") as producer:
            with pytest.raises(LevelTooLow, match=r"need a cluster of level 3, and this one has level 2"):
                await client.admin.perform("topic.create", name="replies", **transient)
            with pytest.raises(FeatureUnsupported, match="delays need a cluster of a higher level: linn cluster"):
                await producer.publish(b"later", delay_ms=1_000)
            await upgraded(first, brokers)
            assert (await operate(first, "upgrade"))["changed"] is False
            await producer.publish(b"later", delay_ms=1_000)
            await client.admin.perform("topic.create", name="replies", **transient)


@simulated
async def test_a_cluster_below_the_least_level_is_refused(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1)
        await first.stop()
        entry = world.store.content()["cluster"].value
        await world.store.client(env).put_all({"cluster": {**entry, "level": OLD - 1}}, {})
        with pytest.raises(MetadataInvalid, match="has level 1, and this version of linn knows no level below 2"):
            await first.start()


@simulated
async def test_an_older_broker_does_not_start_in_a_newer_cluster(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1)
        old = SimBroker(world, 2, "", "", 1)
        old.level = OLD
        before = world.store.content()
        with pytest.raises(MetadataLater, match="has level 3, and this version of linn knows up to level 2"):
            await old.start()
        assert world.store.content() == before
        old.level = NEW
        await old.start()
        await until(lambda: len(first.broker.cluster.view.state.sessions) == 2)  # type: ignore[union-attr]


# --- sessions --------------------------------------------------------------------------------------------------------


@simulated
async def test_an_older_broker_whose_session_ended_before_the_upgrade_ends_when_it_is_back(env: SimEnv) -> None:
    async with cluster_world(env) as world:
        old, new = world.member(1), world.member(2)
        old.level = OLD
        await old.start()
        await new.start()
        world.store.cut(old.env.name)
        await until(lambda: 1 not in new.state.sessions)
        change = Operations(new.state, {}, new.node.policy_of).upgrade(NEW)
        assert change.write is not None
        await new.node.store.put_all(*change.write)
        world.store.heal(old.env.name)
        with trio.fail_after(60):
            await old.wait_ended()
        assert isinstance(old.error, MetadataLater)
        await until(lambda: 1 not in new.state.sessions)


@simulated
async def test_an_older_broker_that_is_registered_when_the_level_is_raised_ends(env: SimEnv) -> None:
    """The upgrade can't know a node that never was in the cluster before, and registers in the same moment."""
    async with cluster_world(env) as world:
        old = world.member(1)
        old.level = OLD
        await old.start()
        admin = world.store.client(SimEnv(0, name="admin"))
        await admin.put_all({"cluster": {"id": old.node.cluster_id, "level": NEW}}, {})
        with trio.fail_after(60):
            await old.wait_ended()
        assert isinstance(old.error, MetadataLater)


@simulated
async def test_an_older_broker_does_not_register_after_the_level_was_raised(env: SimEnv) -> None:
    """The level is raised after it has read it, and before it writes its session."""
    async with cluster_world(env) as world:
        old, written = world.member(1), list[SimWrite]()
        old.level = OLD
        await old.start()
        old.env.kill()
        await old.wait_ended()
        await trio.sleep(2 * TIMEOUT_S)
        raised = msgspec.json.encode(ClusterEntry(old.node.cluster_id, NEW))

        def raise_before_the_session(write: SimWrite) -> None:
            written.append(write)
            if "ended/1" in write.changes:
                world.store.put_all("admin", {"cluster": raised}, {}, NO_LEASE)

        world.store.on_write = raise_before_the_session
        world.store.slow_watches(old.env.name, (5.0, 5.0))
        with pytest.raises(MetadataLater):
            await old.start()
        assert ["cluster" in write.changes for write in written].count(True) == 1
        assert [write for write in written if "sessions/1" in write.changes] == []


def test_the_upgrade_depends_on_all_nodes_of_the_cluster_alive_or_not() -> None:
    state = state_of(OLD)
    del state.sessions[2]
    write = Operations(state, {}, lambda _: PartPolicy()).upgrade(NEW).write
    assert write is not None
    assert write.conditions.keys() == {"cluster", "sessions/1", "sessions/2"}


@simulated
async def test_workers_raise_their_level_at_the_first_start_in_a_new_version(env: SimEnv) -> None:
    async with cluster_world(env) as world:
        workers = [world.member(number) for number in (1, 2)]
        for worker in workers:
            worker.level, worker.are_workers = OLD, True
            await worker.start()
        await workers[0].stop()
        workers[0].level = NEW
        await workers[0].start()
        assert workers[0].state.level == OLD, "the other worker still runs the old version"
        for worker in workers:
            await worker.stop()
            worker.level = NEW
        for worker in workers:
            await worker.start()
        await until(lambda: {worker.state.level for worker in workers} == {NEW})


# --- decisions -------------------------------------------------------------------------------------------------------


def state_of(level: int) -> ClusterState:
    """Two nodes, of which the first one drains, and whose topic "t" has a replica too many, and an unfit leader."""
    state = ClusterState(1, cluster=ClusterEntry("c", level))
    for number in (1, 2):
        state.sessions[number] = SessionEntry(f"s{number}", 0, {}, (OLD, NEW))
        state.nodes[number] = NodeEntry(f"f{number}", f"h{number}", "", draining=number == 1, session=f"s{number}")
    state.parts["parts/t/0"] = PartEntry(1, "s1", 1, (1, 2), (1, 2))
    return state
