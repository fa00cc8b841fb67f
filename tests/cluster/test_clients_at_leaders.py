"""The Python client in a cluster: it goes to the broker that leads a topic, and follows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from simulated_time import simulated

import linn
from linn.client import Client, Consumer
from linn.client.connection.leaders import REST_S
from linn.client.connection.metadata import find_leaders
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


def url(*brokers: SimBroker) -> str:
    return "linn://" + ",".join(broker.address for broker in brokers)


async def apart(
    world: BrokerWorld, *topics: str, replicas: int = 1, toml: str = "", **settings: object
) -> tuple[list[SimBroker], SimBroker, SimBroker]:
    """Brokers with topics, the leader of the first one, and another broker."""
    brokers = await world.brokers(toml=toml, replicas=replicas)
    for topic in topics or ("t",):
        await (await brokers[0].client()).administer("topic.create", name=topic, settings={"kind": "both", **settings})
    leaders = await until_led(brokers, *(topics or ("t",)))
    leader = next(iter(leaders.values()))
    return brokers, leader, next(it for it in brokers if it is not leader)


@asynccontextmanager
async def client_of(world: BrokerWorld, *brokers: SimBroker, **options: object) -> AsyncIterator[Client]:
    """A client on a machine of its own, whose URL has these brokers."""
    env = SimEnv(world.seed, name="client", world=world.env.world)
    async with linn.connect(url(*brokers), env=env, **options) as client:  # type: ignore[arg-type]
        yield client


def passed(brokers: list[SimBroker]) -> int:
    """The bytes of batches that brokers have passed on, to leaders and from them."""
    links = [broker.broker.gateway.links for broker in brokers]
    counts = [link.forwarded for link in links if link is not None]
    return sum(count.published_bytes + count.delivered_bytes for count in counts)


def clients(broker: SimBroker) -> int:
    """The number of connections of clients."""
    return len(broker.broker.gateway.connections.traffic["native"].open)


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Take and ack so many messages."""
    found = []
    with trio.fail_after(120):
        while len(found) < count:
            message = await anext(consumer)
            found.append(message.value)
            await message.ack()
    return found


@simulated
async def test_publishes_reads_and_settlements_go_to_the_leader_and_none_is_passed_on(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world)
        async with client_of(world, other) as client:
            assert client.broker == other.broker.name
            async with client.producer("t") as producer:
                for number in range(20):
                    await producer.publish(b"%d" % number)
                await producer.publish_many([b"%d" % number for number in range(20, 40)])
            async with client.consumer("t") as consumer:
                assert await values(consumer, 40) == [b"%d" % number for number in range(40)]
            async with client.consumer("t", group="g") as member:
                assert await values(member, 40) == [b"%d" % number for number in range(40)]
            fetched = await client.fetch("t", 0, 0)
            assert sum(map(len, fetched.batches)) == 40
            assert await client.find_offset("t", 0, "latest") == 40
        assert passed(brokers) == 0
        assert await (await leader.client()).taken("t") == []


@simulated
async def test_a_client_has_one_connection_to_each_broker_that_it_needs(env: SimEnv) -> None:
    async with broker_world(env) as world:
        names = ["a", "b", "c", "d", "e", "f"]
        brokers, _, other = await apart(world, *names)
        before = [clients(broker) for broker in brokers]
        async with client_of(world, other) as client, trio.open_nursery() as nursery:
            for name in names:
                producer = await client.producer(name).__aenter__()
                consumer = await client.consumer(name).__aenter__()
                nursery.start_soon(producer.publish, b"x")
                assert await values(consumer, 1) == [b"x"]
            now = [clients(broker) for broker in brokers]
            assert [more - less for more, less in zip(now, before, strict=True)] == [1, 1, 1]
        assert passed(brokers) == 0


@simulated
async def test_members_of_a_group_read_each_topic_at_its_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        names = ["a", "b", "c"]
        brokers, _, other = await apart(world, *names)
        assert len({broker.number for broker in (await until_led(brokers, *names)).values()}) > 1
        async with client_of(world, other) as client, client.consumer(names, group="g") as member:
            for name in names:
                async with client.producer(name) as producer:
                    await producer.publish(name.encode())
            assert sorted(await values(member, 3)) == [b"a", b"b", b"c"]  # type: ignore[type-var]
            assert set(member.partitions) == set(names)
        assert passed(brokers) == 0


@simulated
async def test_an_exchange_is_published_to_through_the_broker_at_hand(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world)
        admin = await leader.client()
        await admin.administer("exchange.create", name="e", settings={"type": "fanout"})
        await admin.administer("exchange.bind", exchange="e", topic="t")
        await until(lambda: "e" in other.broker.routers)
        async with client_of(world, other) as client, client.producer(exchange="e") as producer:
            await producer.publish(b"x")
        assert passed(brokers) > 0
        assert await admin.fetch("t") == ["x"]


async def _publish_all(client: Client, count: int) -> None:
    async with client.producer("t") as producer:
        for number in range(count):
            await producer.publish(b"%d" % number)
            await trio.sleep(0.05)


async def _go_on_without(world: BrokerWorld, how: str) -> None:
    """Publish and consume while the leader goes; check that all is there once, in order, and passed on no more."""
    brokers, leader, _ = await apart(world, replicas=3)
    found: list[bytes | None] = []
    async with client_of(world, *brokers) as client, trio.open_nursery() as nursery:
        async with client.consumer("t", group="g") as consumer:
            nursery.start_soon(_publish_all, client, 200)
            found += await values(consumer, 50)
            await (leader.stop() if how == "stop" else leader.lose_power())
            found += await values(consumer, 150)
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(200)]
        left = [broker for broker in brokers if broker is not leader]
        await until_led(left, "t")
        await trio.sleep(REST_S)
        before = passed(left)
        await _publish_all(client, 10)
        assert passed(left) == before
        (now,) = (await until_led(left, "t")).values()
        stored = await (await now.client()).fetch("t", bytes_max=1 << 24)
        assert stored == [str(number) for number in [*range(200), *range(10)]]


@simulated
async def test_a_client_follows_when_the_leader_loses_power(env: SimEnv) -> None:
    async with broker_world(env) as world:
        await _go_on_without(world, "power")


@simulated
async def test_a_client_follows_when_the_leader_stops(env: SimEnv) -> None:
    async with broker_world(env) as world:
        await _go_on_without(world, "stop")


@simulated
async def test_a_leader_that_a_client_cant_reach_is_served_through_the_broker_at_hand(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world)
        world.env.world.cut("client", leader.env.name)
        async with client_of(world, other) as client, client.producer("t") as producer:
            began_s = trio.current_time()
            await producer.publish(b"first")
            assert trio.current_time() - began_s < 1
            async with client.consumer("t") as consumer:
                assert await values(consumer, 1) == [b"first"]
            assert passed(brokers) > 0
            world.env.world.heal("client", leader.env.name)
            await trio.sleep(8 * REST_S)
            before = passed(brokers)
            await producer.publish(b"second")
            assert passed(brokers) == before


@simulated
async def test_a_reader_that_was_passed_on_for_long_goes_to_the_leader_that_can_be_reached(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world, kind="stream", partitions=2)
        async with client_of(world, other) as client, client.consumer("t", start="earliest") as consumer:
            async with client_of(world, leader) as direct, direct.producer("t") as producer:
                for partition in (0, 1):
                    await producer.publish_many([b"x"], partition=partition)
            for _ in range(2):
                await anext(consumer)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(anext, consumer)
                world.env.world.cut("client", leader.env.name)
                await trio.sleep(77)
                world.env.world.heal("client", leader.env.name)
                await trio.sleep(6 * REST_S)
                before = passed(brokers)
                async with client_of(world, leader) as direct, direct.producer("t") as producer:
                    await producer.publish(b"y")
            assert passed(brokers) == before


@simulated
async def test_the_leader_of_a_topic_with_several_subscriptions_is_found(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, _, other = await apart(world)
        async with client_of(world, other) as client:
            await find_leaders(client._connector, ["t", "t"])
            assert client._connector.leaders.knows("t")


@simulated
async def test_a_leader_that_is_frozen_for_its_client_is_left(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, leader, other = await apart(world)
        async with client_of(world, other) as client, client.producer("t") as producer:
            await producer.publish(b"first")
            world.env.world.cut("client", leader.env.name)
            await producer.publish(b"second")
        assert await (await leader.client()).fetch("t") == ["first", "second"]


@simulated
async def test_a_broker_that_a_client_cant_know_is_not_told(env: SimEnv) -> None:
    """A listener that is bound to all addresses, and advertises none, is of no use to others."""
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world)
        client = await other.client()
        described = (await client.call(m.Describe(["t"]))).nodes
        assert [(node.id, node.address) for node in described] == [(it.number, it.address) for it in brokers]
        assert (client.welcome.node, client.welcome.cluster) == (other.number, other.broker.cluster.cluster_id)
        sessions = other.broker.cluster.view.state.sessions
        listening = {**sessions[leader.number].addresses, "native": "0.0.0.0:5466"}
        sessions[leader.number] = msgspec.structs.replace(sessions[leader.number], addresses=listening)
        described = (await client.call(m.Describe(["t"]))).nodes
        assert [node.id for node in described] == [it.number for it in brokers if it is not leader]
