"""New topics of a cluster can be used at once at any broker, and a consumer waits for a leader to be elected."""

from __future__ import annotations

import pytest
import trio
from broker_world import broker_world, until_led
from cluster_world import until
from raw_client import Refused
from simulated_time import simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

FILE = """
[exchanges.first]
type = "topic"
alternate = "last"
[[exchanges.first.bindings]]
exchange = "middle"
key = "#"
[exchanges.middle]
type = "topic"
[exchanges.last]
type = "fanout"

[topics.work]
max_deliveries = 2
dead_letter = "dead"
[topics.dead]
[topics.small]
"""


@simulated
async def test_a_new_topic_can_be_used_at_any_broker_as_soon_as_it_is_made(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(replicas=3)
        clients = [await broker.client() for broker in brokers]
        for number in range(9):
            name, maker = f"t{number}", clients[number % 3]
            await maker.administer("topic.create", name=name, settings={"kind": "stream"})
            assert sum(broker.broker.topic(name).led_by is None for broker in brokers) == 1
            for client in clients:
                assert await client.fetch(name) == []
                assert isinstance(await client.call(m.Subscribe(name)), m.Subscribed)


@simulated
async def test_a_broker_is_ready_when_the_cluster_knows_it(env: SimEnv) -> None:
    async with broker_world(env) as world:
        for count in (1, 2, 3):
            (broker,) = await world.brokers(1, replicas=3)
            node, known = broker.broker.cluster, world.store.content()
            assert node is not None
            assert node.is_registered
            assert [f"sessions/{number}" in known for number in (1, 2, 3)] == [number <= count for number in (1, 2, 3)]
            assert broker.broker.state == "ready"


@simulated
async def test_a_changed_topic_is_used_as_it_is_now_at_any_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(replicas=3)
        clients = [await broker.client() for broker in brokers]
        for number in range(3):
            await clients[0].administer("topic.create", name=f"t{number}", settings={"kind": "stream"})
        for number in range(9):
            name, changer, other = f"t{number % 3}", clients[number // 3], clients[number % 2]
            await changer.administer("topic.alter", name=name, settings={"partitions": 2 + number})
            await other.publish(name, ["x"], partition=1 + number)


@simulated
async def test_a_topic_is_made_though_another_broker_does_not_follow(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        brokers[2].env.kill()
        began_s = trio.current_time()
        assert await client.administer("topic.create", name="t", settings={"replicas": 1}) == {"created": True}
        assert trio.current_time() - began_s < 10


@simulated
async def test_a_change_that_is_only_checked_waits_for_no_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        began_s = trio.current_time()
        await client.administer("topic.create", name="t", settings={}, validate_only=True)
        assert trio.current_time() - began_s < 0.5


@simulated
async def test_topics_and_exchanges_of_a_file_may_name_later_ones(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=FILE)
        await until_led(brokers, "work", "dead", "small")
        routers = brokers[0].broker.routers
        assert {"first", "middle", "last"} <= routers.keys()


@simulated
async def test_a_subscription_waits_for_the_next_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(replicas=3)
        client = await brokers[0].client()
        await client.administer("topic.create", name="t", settings={"kind": "queue"})
        (leader,) = (await until_led(brokers, "t")).values()
        others = [broker for broker in brokers if broker is not leader]
        client = await others[0].client()
        await client.publish("t", ["a"])
        topic = others[0].broker.topic("t")
        leader.env.kill()
        await until(lambda: topic.led_by is not None and topic.led_by().leader == 0)
        subscribed = await client.call(m.Subscribe("t", credit=1))
        assert isinstance(subscribed, m.Subscribed)
        assert len((await client.delivery()).batches) == 1


@simulated
async def test_a_subscription_without_any_leader_is_refused_after_a_while(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(replicas=1)
        client = await brokers[0].client()
        for name in ("t", "u", "v"):
            await client.administer("topic.create", name=name, settings={"kind": "queue"})
        led = await until_led(brokers, "t", "u", "v")
        name, leader = next((name, broker) for name, broker in led.items() if broker is not brokers[0])
        leader.env.kill()
        topic = brokers[0].broker.topic(name)
        await until(lambda: topic.led_by is not None and topic.led_by().leader == 0)
        began_s = trio.current_time()
        with pytest.raises(Refused, match="has no leader") as refusal:
            await client.call(m.Subscribe(name))
        assert refusal.value.code == "partition.not_leader"
        assert 4 < trio.current_time() - began_s < 6
