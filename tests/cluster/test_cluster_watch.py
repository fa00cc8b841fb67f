"""The state of topics and nodes as `linn cluster status` and the metrics of brokers tell it, in trouble and after."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world
from cluster_world import until
from metric_samples import samples, value
from raw_client import Refused
from replicas_seen import ALL, in_sync
from replicated_topic import made
from simulated_time import simulated
from test_unfit_leaders import fill, make_room, published

from linn.core.metadata.levels import LEVEL, LEVEL_MIN
from linn.descriptions import ClusterDescription
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


def status(broker: SimBroker, troubled_max: int = 10) -> ClusterDescription:
    """The cluster, as a broker describes it."""
    cluster = broker.broker.cluster
    assert cluster is not None
    return cluster.describe(troubled_max)


def troubles(broker: SimBroker, topic: str = "t") -> list[str]:
    """The troubles of a topic, as a broker names them."""
    found = {each["topic"]: each["troubles"] for each in status(broker)["troubled"]}
    return list(found.get(topic, []))


def gauge(broker: SimBroker, name: str, *labels: str) -> Any:
    return value(broker.broker, f"linn_cluster_{name}", *labels)


def node(broker: SimBroker, number: int) -> Any:
    return next(it for it in status(broker)["nodes"] if it["node"] == number)


async def described(broker: SimBroker, topic: str = "t") -> Any:
    client = await broker.client()
    return await client.administer("topic.show", name=topic)


@asynccontextmanager
async def three(env: SimEnv) -> AsyncIterator[tuple[BrokerWorld, SimBroker, list[SimBroker]]]:
    """Run three brokers with the stream t; yields its leader and its followers."""
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        yield world, leader, [it for it in brokers if it is not leader]


async def is_well(brokers: list[SimBroker]) -> None:
    """Wait until all brokers say that nothing is wrong."""
    await until(lambda: all(status(it)["troubled"] == [] for it in brokers))
    for broker in brokers:
        found = status(broker)["topics"]
        bad = ("leaderless", "below_minimum", "unfit", "out_of_sync", "too_few_replicas")
        assert {name: found[name] for name in bad} == dict.fromkeys(bad, 0)  # type: ignore[literal-required]
        for name in ("leaderless", "below_minimum", "unfit", "out_of_sync", "few_replicas"):
            assert gauge(broker, f"topics_{name}") == 0
        assert gauge(broker, "members_out_of_sync") == gauge(broker, "replicas_out_of_sync") == 0


@simulated
async def test_a_cluster_that_is_well_says_who_leads_and_holds_what(env: SimEnv) -> None:
    async with three(env) as (_, leader, followers):
        await made([leader, *followers], "u", kind="queue")
        await is_well([leader, *followers])
        nodes = status(followers[0])["nodes"]
        assert sum(it["leads"] for it in nodes) == 2
        assert [it["holds"] for it in nodes] == [2, 2, 2]
        assert [it["levels"] for it in nodes] == [[LEVEL_MIN, LEVEL]] * 3
        roles = [samples(it.broker, "linn_cluster_replicas") for it in (leader, *followers)]
        assert sum(it[("leader",)] for it in roles) == 2  # type: ignore[misc]
        assert sum(it[("follower",)] for it in roles) == 4  # type: ignore[misc]
        assert sum(gauge(it, "elections_total") for it in (leader, *followers)) >= 2
        assert gauge(leader, "topics") == 2


@simulated
async def test_a_killed_follower_is_out_of_sync_until_it_is_back(env: SimEnv) -> None:
    async with three(env) as (_, leader, (lost, other)):
        lost.env.kill()
        await lost.ended()
        await until(lambda: troubles(other) == ["out of sync"])
        await until(lambda: lost.number not in in_sync(other))
        assert gauge(other, "topics_out_of_sync") == gauge(other, "members_out_of_sync") == 1
        assert gauge(other, "topics_below_minimum") == gauge(other, "topics_leaderless") == 0
        await until(lambda: gauge(leader, "in_sync_changes_total", "shrink") == 1)
        assert node(other, lost.number)["out_of_sync"] == 1
        (follower,) = [it for it in (await described(other))["replicas"]["followers"] if it["node"] == lost.number]
        assert not follower["is_linked"]
        assert follower["lag_s"] >= 2
        await until(lambda: (gauge(leader, "nodes"), gauge(leader, "nodes_alive")) == (3, 2))
        lag_s = samples(leader.broker, "linn_cluster_follower_lag_seconds")
        assert lag_s == {(str(other.number),): 0.0}, "a dead node is no slow one"
        await lost.start()
        await is_well([leader, lost, other])
        assert gauge(leader, "in_sync_changes_total", "expand") >= 1


@simulated
async def test_a_leader_alone_is_below_its_minimum_and_refuses_all(env: SimEnv) -> None:
    async with three(env) as (_, leader, followers):
        for follower in followers:
            follower.env.kill()
            await follower.ended()
        await until(lambda: troubles(leader) == ["below minimum", "out of sync"])
        assert gauge(leader, "topics_below_minimum") == 1
        assert gauge(leader, "members_out_of_sync") == 2
        with pytest.raises(Refused, match="replicas"):
            await (await leader.client()).publish("t", ["refused"], acks=ALL)
        for follower in followers:
            await follower.start()
        await is_well([leader, *followers])


@simulated
async def test_a_topic_whose_members_are_all_dead_has_no_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        await client.administer("topic.create", name="t", settings={"replicas": 1, "kind": "stream"})
        await until(lambda: all(status(it)["topics"]["topics"] == 1 and not troubles(it) for it in brokers))
        lost = next(it for it in brokers if node(it, it.number)["leads"])
        others = [it for it in brokers if it is not lost]
        lost.env.kill()
        await lost.ended()
        await until(lambda: all(troubles(it) == ["leaderless", "below minimum", "out of sync"] for it in others))
        assert [gauge(it, "topics_leaderless") for it in others] == [1, 1]
        assert status(others[0])["troubled"][0]["leader"] == 0
        await lost.start()
        await is_well(brokers)


@simulated
async def test_a_follower_that_is_cut_off_from_its_leader_is_out_of_sync_and_catches_up(env: SimEnv) -> None:
    async with three(env) as (_, leader, (cut, other)):
        client = await leader.client()
        await client.publish("t", ["1"], acks=ALL)
        await until(
            lambda: (
                samples(leader.broker, "linn_cluster_follower_lag_records").keys()
                == {(str(cut.number),), (str(other.number),)}
            )
        )
        env.world.cut(leader.env.name, cut.env.name)
        await until(lambda: troubles(cut) == ["out of sync"])
        assert gauge(cut, "replicas_out_of_sync") == 1
        lag_s = gauge(leader, "follower_lag_seconds", str(cut.number))
        assert lag_s >= 2
        assert gauge(leader, "follower_lag_seconds", str(other.number)) == 0
        for number in range(5):
            await client.publish("t", [str(number)], acks=ALL)
        (follower,) = [it for it in (await described(leader))["replicas"]["followers"] if it["node"] == cut.number]
        assert (follower["is_linked"], follower["lag_records"]) == (False, 5)
        assert gauge(leader, "follower_lag_records", str(cut.number)) == 5
        env.world.heal(leader.env.name, cut.env.name)
        await is_well([leader, cut, other])
        followers = (await described(leader))["replicas"]["followers"]
        assert [(it["is_linked"], it["lag_records"], it["lag_s"]) for it in followers] == [(True, 0, 0)] * 2


@simulated
async def test_a_slow_follower_lags_at_the_leader(env: SimEnv) -> None:
    async with three(env) as (_, leader, (slow, other)):
        client = await leader.client()
        await client.publish("t", ["1"], acks=ALL)
        await trio.sleep(1)
        fill(slow)  # It stores nothing.
        for number in range(5):
            await client.publish("t", [str(number)], acks=1)
        await trio.sleep(5)
        assert gauge(leader, "follower_lag_seconds", str(other.number)) == 0
        assert 5 <= gauge(leader, "follower_lag_seconds", str(slow.number)) < 7
        assert troubles(leader) == [], "it is given more time"
        await until(lambda: troubles(leader) == ["out of sync"])
        make_room(slow)
        await is_well([leader, slow, other])
        await until(lambda: gauge(leader, "follower_lag_records", str(slow.number)) == 0)
        assert gauge(leader, "follower_lag_seconds", str(slow.number)) == 0


@simulated
async def test_a_full_disk_is_told_at_its_broker_and_its_leader_is_unfit_until_it_has_left(env: SimEnv) -> None:
    async with three(env) as (_, leader, followers):
        client = await followers[0].client()
        fill(leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(published, client, "more")
            await until(lambda: "unfit" in troubles(followers[0]))
            assert gauge(followers[0], "topics_unfit") == 1
            assert status(followers[0])["troubled"][0]["unfit"] == [leader.number]
        await until(lambda: status(leader)["failing"] == gauge(leader, "replicas_failing") == 1)
        assert gauge(followers[0], "replicas_failing") == 0
        assert status(followers[0])["topics"]["away"] == gauge(followers[0], "topics_away") == 1
        make_room(leader)
        await is_well([leader, *followers])
        await until(lambda: status(leader)["failing"] == gauge(leader, "replicas_failing") == 0)


@simulated
async def test_a_leader_without_successors_tells_of_its_full_disk(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (leader,) = await world.brokers(1, '[topics.t]\nkind = "stream"\nreplicas = 1\n')
        await until(lambda: status(leader)["topics"]["topics"] == 1 and not troubles(leader))
        client = await leader.client()
        await published(client, "x" * 2_000)
        fill(leader)
        with pytest.raises(trio.TooSlowError):
            await published(client, "x" * 2_000, within_s=5)
        assert gauge(leader, "replicas_failing") == 1
        make_room(leader)
        await published(client, "x" * 2_000)
        assert gauge(leader, "replicas_failing") == 0


@simulated
async def test_a_drained_node_is_named_and_leads_nothing(env: SimEnv) -> None:
    async with three(env) as (_, leader, (second, other)):
        client = await other.client()
        await client.administer("cluster.drain", node=leader.number)
        await until(lambda: all(node(it, leader.number)["is_draining"] for it in (leader, second, other)))
        await until(lambda: node(other, leader.number)["leads"] == 0)
        assert gauge(other, "nodes_draining") == gauge(other, "topics_away") == 1
        await is_well([leader, second, other])
        await client.administer("cluster.undrain", node=leader.number)
        await until(lambda: gauge(other, "nodes_draining") == 0)


FOUR = "".join(f'[topics.t{number}]\nkind = "stream"\nreplicas = 3\n' for number in range(4))


@simulated
async def test_topics_with_more_replicas_than_nodes_are_named_and_the_list_has_a_limit(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2, FOUR)
        client = await brokers[0].client()
        await until(lambda: all(troubles(it, f"t{n}") == ["too few replicas"] for it in brokers for n in range(4)))
        assert gauge(brokers[1], "topics_few_replicas") == 4
        found = await client.administer("cluster.status", troubled_max=3)
        assert [it["topic"] for it in found["troubled"]] == ["t0", "t1", "t2"]
        assert found["troubled_more"] == 1
        assert found["topics"]["too_few_replicas"] == 4
        with pytest.raises(Refused, match="troubled_max"):
            await client.administer("cluster.status", troubled_max=10_001)
        brokers += await world.brokers(1, FOUR)
        await is_well(brokers)


@simulated
async def test_what_is_replicated_and_passed_on_is_counted(env: SimEnv) -> None:
    async with three(env) as (_, leader, (door, _)):
        passed_on = ("forwarded_publishes_total", "forwarded_published_bytes_total", "forwarded_delivered_bytes_total")
        sent, received = gauge(leader, "replicated_sent_bytes_total"), gauge(door, "replicated_received_bytes_total")
        client = await leader.client()
        await client.publish("t", ["x" * 1_000], acks=ALL)
        assert await client.fetch("t") == ["x" * 1_000]
        assert [gauge(it, name) for it in (leader, door) for name in passed_on] == [0] * 6
        await until(lambda: gauge(leader, "replicated_sent_bytes_total") >= sent + 2_000)
        assert gauge(door, "replicated_received_bytes_total") >= received + 1_000

        client = await door.client()
        await client.publish("t", ["y" * 1_000], acks=ALL)
        assert gauge(door, "forwarded_publishes_total") == 1
        assert 1_000 < gauge(door, "forwarded_published_bytes_total") < 1_300
        assert gauge(door, "forwarded_delivered_bytes_total") == 0
        assert len(await client.fetch("t")) == 2
        fetched = gauge(door, "forwarded_delivered_bytes_total")
        assert 2_000 < fetched < 2_600
        assert [gauge(leader, name) for name in passed_on] == [0] * 3


@simulated
async def test_deliveries_to_a_consumer_at_another_broker_are_counted(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="queue")
        door = next(it for it in brokers if it is not leader)
        for broker, count, credit in ((leader, 0, 0), (door, 1_000, 0), (door, 1_000, 1)):
            client = await broker.client()
            await client.publish("t", ["x" * 1_000], acks=ALL)
            before = gauge(door, "forwarded_delivered_bytes_total")
            if credit:
                subscription = (await client.call(m.Subscribe("t", credit=credit))).subscription
                await client.settle(subscription, await client.delivery())
            else:
                assert len(await client.taken("t")) == 1
            assert count <= gauge(door, "forwarded_delivered_bytes_total") - before <= 1.3 * count
        assert gauge(leader, "forwarded_delivered_bytes_total") == 0


@simulated
async def test_a_clock_that_is_off_is_named_at_the_other_brokers(env: SimEnv) -> None:
    async with three(env) as (_, leader, (wrong, _)):
        wrong.env.clock.jump(90_000)
        number = str(wrong.number)
        await until(lambda: samples(leader.broker, "linn_cluster_clock_ahead_seconds").get((number,), 0) > 80)  # type: ignore[operator]
        assert node(leader, wrong.number)["clock_ahead_s"] == pytest.approx(90, abs=1)
        wrong.env.clock.jump(-90_000)
        await until(lambda: abs(node(leader, wrong.number)["clock_ahead_s"]) < 1)
