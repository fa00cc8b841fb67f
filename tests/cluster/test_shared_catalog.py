"""One catalog at all brokers of a cluster: what is changed at one is changed at all."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records
from simulated_time import simulated

from linn.core.errors.replication import NotLeader
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TO_EXCHANGE = m.Publish("e", to_exchange=True)


async def made_at(broker: SimBroker, client: RawClient, brokers: list[SimBroker], kind: str) -> str:
    """Make topics through a client until one of two brokers leads one; its name."""
    for name in ("t", "u"):
        await client.administer("topic.create", name=name, settings={"kind": kind})
    led = await until_led(brokers, "t", "u")
    return next(name for name, leader in led.items() if leader is broker)


@simulated
async def test_a_topic_made_at_one_broker_is_known_at_all_and_open_at_its_leader_alone(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        for name in ("a", "b", "c"):
            assert await client.administer("topic.create", name=name, settings={"kind": "stream"}) == {"created": True}
        leaders = await until_led(brokers, "a", "b", "c")
        assert len(set(leaders.values())) == 3, "topics go where there are fewest"
        for name, leader in leaders.items():
            for broker in brokers:
                there = await broker.client()
                assert await there.fetch(name) == []
                if broker is not leader:
                    text = f"led by node {leader.number}, at {leader.address}"
                    with pytest.raises(NotLeader, match=text):
                        broker.broker.topic(name).check_led()


@simulated
async def test_settings_bindings_users_and_deletions_are_followed(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        first, second = await brokers[0].client(), await brokers[1].client()
        await first.administer("topic.create", name="a", settings={"kind": "both"})
        (leader,) = (await until_led(brokers, "a")).values()
        await second.administer("exchange.create", name="e", settings={"type": "topic"})
        await until(lambda: all("e" in it.broker.routers for it in brokers))
        await first.administer("exchange.bind", exchange="e", topic="a", key="x.*")
        await second.administer("topic.alter", name="a", settings={"retention": "1h"})
        await second.administer("role.create", name="readers", rules={"topic:a": ["consume"]})
        await until(lambda: all("readers" in it.broker.policy.roles for it in brokers))
        await first.administer("user.create", name="ann", roles=["readers"])
        hour_ms = 3_600_000
        await until(lambda: all(it.broker.topic("a").settings.retention_ms == hour_ms for it in brokers))
        await until(lambda: all(it.broker.policy.users.find("ann") is not None for it in brokers))
        await (await leader.client()).call(TO_EXCHANGE, [records(["kept"], routing_key="x.y")])
        assert await (await leader.client()).fetch("a") == ["kept"]
        for broker in brokers:
            shown = await (await broker.client()).administer("exchange.show", name="e")
            assert [binding["topic"] for binding in shown["bindings"]] == ["a"]
        await second.administer("topic.delete", name="a")
        await until(lambda: "a" not in brokers[0].broker.topics)
        await first.administer("exchange.delete", name="e")
        await until(lambda: not any("a" in it.broker.topics or "e" in it.broker.routers for it in brokers))
        await until(lambda: not any(key.startswith("parts/") for key in world.store.content()))


@simulated
async def test_changes_at_two_brokers_at_once_are_checked_against_each_other(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        clients = [await it.client() for it in brokers]
        outcomes: list[object] = []

        async def create(index: int) -> None:
            kind = "queue" if index else "stream"
            try:
                outcomes.append(await clients[index].administer("topic.create", name="t", settings={"kind": kind}))
            except Refused as refused:
                outcomes.append(refused.code)

        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(create, index)
        await until_led(brokers, "t")
        kinds = {it.broker.topic("t").settings.kind for it in brokers}
        assert len(kinds) == 1
        assert {"created": True} in outcomes
        # One of another kind is refused; the same one is there already.
        expected = {"queue": ["topic.exists"], "stream": ["topic.exists", "topic.exists"]}[kinds.pop()]
        assert [it for it in outcomes if isinstance(it, str)] == expected


@simulated
async def test_a_broker_that_was_down_has_the_catalog_and_its_own_records_afterwards(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        for name in ("a", "b", "c"):
            await client.administer("topic.create", name=name, settings={"kind": "stream"})
        led = await until_led(brokers, "a", "b", "c")
        for name, leader in led.items():
            await (await leader.client()).publish(name, [f"of {name}"])
        lost = led["c"]
        others = [it for it in brokers if it is not lost]
        await lost.stop()
        client = await others[0].client()
        with pytest.raises(Refused, match=f"has no leader: node {lost.number} is down"):
            await client.publish("c", ["x"])
        await client.administer("topic.create", name="d", settings={"kind": "queue"})
        assert (await until_led(others, "d"))["d"] is not lost
        await lost.start()
        assert await until_led(brokers, "a", "b", "c", "d") == {**led, "d": (await until_led(others, "d"))["d"]}
        assert await (await lost.client()).fetch("c") == ["of c"]


@simulated
async def test_a_topic_deleted_while_its_leader_was_down_leaves_it_no_records(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        for name in ("a", "b", "c"):
            await client.administer("topic.create", name=name, settings={"kind": "stream"})
        led = await until_led(brokers, "a", "b", "c")
        lost = led["c"]
        await (await lost.client()).publish("c", ["old"])
        await lost.stop()
        others = [it for it in brokers if it is not lost]
        client = await others[0].client()
        await client.administer("topic.delete", name="c")
        await lost.start()
        assert not lost.env.disk.exists("data/segmented-log/c/0")
        await until(lambda: all(lost.number in it.broker.cluster.view.state.sessions for it in brokers))
        await client.administer("topic.create", name="c", settings={"kind": "stream"})
        (leader,) = (await until_led(brokers, "c")).values()
        assert leader is lost, "it has the fewest partitions"
        assert await (await leader.client()).fetch("c") == []


@simulated
async def test_topics_in_the_file_are_made_once(env: SimEnv) -> None:
    toml = (
        '[topics.t]\nkind = "stream"\npartitions = 2\n[exchanges.e]\n[[topics.t.bindings]]\nexchange = "e"\nkey = "k"\n'
    )
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=toml)
        (leader,) = (await until_led(brokers, "t")).values()
        client = await leader.client()
        await client.call(TO_EXCHANGE, [records(["x"], routing_key="k")])
        for broker in brokers:
            await broker.stop()
        for broker in brokers:
            broker.toml = toml.replace("partitions = 2", "partitions = 3")
            await broker.start()
        (leader,) = (await until_led(brokers, "t")).values()
        assert leader.broker.topic("t").settings.partitions == 2, "the cluster's settings stay"
        found = [await (await leader.client()).fetch("t", index) for index in range(2)]
        assert sorted(found) == [[], ["x"]]


@simulated
async def test_a_store_that_is_down_stops_changes_and_nothing_else(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        await client.administer("topic.create", name="t", settings={"kind": "both"})
        (leader,) = (await until_led(brokers, "t")).values()
        client = await leader.client()
        world.store.stop()
        for number in range(60):
            await client.publish("t", [str(number)])
            await trio.sleep(1)
        with pytest.raises(Refused) as refusal:
            await client.administer("topic.create", name="u", settings={})
        assert refusal.value.code in ("metadata.unavailable", "metadata.unknown")
        assert len(await client.fetch("t")) == 60
        world.store.start()
        await client.administer("topic.create", name="u", settings={})
        await until_led(brokers, "t", "u")
        assert len(await client.fetch("t")) == 60


@simulated
async def test_a_topic_has_no_records_of_an_earlier_one_of_its_name(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        clients = [await it.client() for it in brokers]
        await clients[0].administer("topic.create", name="t", settings={"kind": "stream"})
        (leader,) = (await until_led(brokers, "t")).values()
        await (await leader.client()).publish("t", ["old"])
        await clients[1].administer("topic.delete", name="t")
        await until(lambda: not leader.env.disk.exists("data/segmented-log/t"))
        await clients[1].administer("topic.create", name="t", settings={"kind": "stream"})
        assert await until_led(brokers, "t") == {"t": leader}
        assert await (await leader.client()).fetch("t") == []


@simulated
async def test_an_exchange_is_not_deleted_under_a_topic_that_is_bound_to_it_at_another_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        clients = [await it.client() for it in brokers]
        await clients[0].administer("exchange.create", name="e", settings={})
        await until(lambda: all("e" in it.broker.routers for it in brokers))
        refused: list[str] = []

        async def change(client: RawClient, verb: str, **arguments: object) -> None:
            try:
                await client.administer(verb, **arguments)
            except Refused as refusal:
                refused.append(refusal.code)

        bound = {"bindings": [{"exchange": "e", "key": "k"}]}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(change, clients[0], "exchange.delete", name="e"))
            nursery.start_soon(partial(change, clients[1], "topic.create", name="t", settings=bound))
        assert len(refused) == 1, "one of them was first, and the other one was checked against it"


@simulated
async def test_verbs_about_the_records_of_a_topic_are_carried_out_by_its_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        clients = [await it.client() for it in brokers]
        await clients[0].administer("topic.create", name="t", settings={"kind": "both", "partitions": 2})
        (leader,) = (await until_led(brokers, "t")).values()
        for _ in range(3):
            await (await leader.client()).publish("t", ["x"])
        shown = [await it.administer("topic.show", name="t") for it in clients]
        assert [[part["end"] for part in it["partitions"]] for it in shown] == [shown[0]["partitions"] and [2, 1]] * 3
        elsewhere = next(client for client, it in zip(clients, brokers, strict=True) if it is not leader)
        assert await elsewhere.administer("subscription.create", topic="t", subscription="s") == {"created": True}
        assert (await elsewhere.administer("subscription.show", topic="t", subscription="s"))["unsettled"] == 3
        assert await elsewhere.administer("topic.purge", name="t") == {"purged": 3}
        await elsewhere.administer("subscription.delete", topic="t", subscription="s")
        await until(lambda: not any(it.broker.topic("t").entries for it in brokers))
        with pytest.raises(Refused) as refusal:
            await elsewhere.administer("subscription.show", topic="t", subscription="s")
        assert refusal.value.code == "shared.unknown"


@simulated
async def test_a_verb_for_a_leader_that_is_gone_says_so(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        client = await brokers[0].client()
        there = await made_at(brokers[1], client, brokers, "queue")
        brokers[1].env.kill()
        with pytest.raises(Refused) as refusal:
            await client.administer("topic.purge", name=there)
        # The link may be known to be lost before the request is sent, or not.
        assert refusal.value.code in ("peer.unknown", "peer.unreachable")
        await until(lambda: 2 not in brokers[0].broker.cluster.view.state.sessions)
        with pytest.raises(Refused, match="has no leader: node 2 is down") as refusal:
            await client.administer("topic.purge", name=there)
        assert (await client.administer("topic.show", name=there))["name"] == there


@simulated
async def test_lists_have_the_topics_of_all_brokers_as_their_leaders_know_them(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        clients = [await it.client() for it in brokers]
        for name in ("a", "b", "c"):
            await clients[0].administer("topic.create", name=name, settings={"kind": "both"})
        for name, leader in (await until_led(brokers, "a", "b", "c")).items():
            await (await leader.client()).publish(name, ["x", "y"])
        for client in clients:
            topics = await client.administer("topic.list")
            assert [(it["name"], [part["end"] for part in it["partitions"]]) for it in topics] == [
                ("a", [2]),
                ("b", [2]),
                ("c", [2]),
            ]
            queues = await client.administer("subscription.list")
            assert [(it["topic"], it["unsettled"]) for it in queues] == [("a", 2), ("b", 2), ("c", 2)]
        brokers[2].env.kill()
        assert [it["name"] for it in await clients[0].administer("topic.list")] == ["a", "b", "c"]


@simulated
async def test_a_change_that_a_full_disk_refuses_at_the_leader_is_made_when_there_is_room(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        client, leader = await brokers[0].client(), brokers[1]
        name = await made_at(leader, client, brokers, "queue")
        room = leader.env.disk.capacity_bytes
        leader.env.disk.capacity_bytes = leader.env.disk.used_bytes
        await client.administer("topic.alter", name=name, settings={"partitions": 3})
        await trio.sleep(12)
        assert len(leader.broker.topic(name).partitions) == 1
        leader.env.disk.capacity_bytes = room
        await until(lambda: len(leader.broker.topic(name).partitions) == 3)
        assert (await client.publish(name, ["x"], partition=2)).base_offset == 0


@simulated
async def test_a_topic_whose_broker_came_back_without_its_disk_says_so_and_can_be_deleted(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        client = await brokers[0].client()
        name = await made_at(brokers[1], client, brokers, "stream")
        await brokers[1].stop()
        await until(lambda: 2 not in brokers[0].broker.cluster.view.state.sessions)
        brokers[1].env = SimEnv(world.seed, name="another machine", world=world.env.world)
        await brokers[1].start()
        await until(lambda: 2 in brokers[0].broker.cluster.view.state.sessions)
        await trio.sleep(2)
        with pytest.raises(Refused, match="has no leader: node 2, which held its records, has lost them"):
            await client.publish(name, ["x"])
        await client.administer("topic.delete", name=name)
        await client.administer("topic.create", name=name, settings={"kind": "stream"})
        await until_led(brokers, name)
        await client.publish(name, ["x"])
