"""Topics with several replicas: what was confirmed is there when a broker dies, and the topic goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from replicas_seen import ALL, agree, content, in_sync, marks
from simulated_time import simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def made(brokers: list[SimBroker], name: str = "t", **settings: object) -> SimBroker:
    """Make a topic with three replicas; returns its leader, when all replicas are in sync."""
    client = await brokers[0].client()
    await client.administer("topic.create", name=name, settings={"replicas": 3, **settings})
    (leader,) = (await until_led(brokers, name)).values()
    await until(lambda: len(in_sync(leader, name)) == 3)
    return leader


async def confirmed(client: RawClient, name: str, value: str) -> None:
    """Publish with acks of all replicas, again while the topic has no leader or too few replicas."""
    with trio.fail_after(60):
        while True:
            try:
                await client.publish(name, [value], acks=ALL)
                return
            except Refused as refused:
                if not refused.code.startswith(("partition.", "peer.")):
                    raise
                await trio.sleep(0.1)


def sessions(broker: SimBroker) -> set[int]:
    """Nodes that are alive, as a broker knows it."""
    assert broker.broker.cluster is not None
    return {*broker.broker.cluster.view.state.sessions}


Killing = Callable[[SimBroker], Awaitable[None]]


async def kill(broker: SimBroker) -> None:
    broker.env.kill()
    await broker.ended()


async def power_off(broker: SimBroker) -> None:
    broker.env.crash()
    await broker.ended()


async def stop(broker: SimBroker) -> None:
    await broker.stop()


@simulated
async def test_all_replicas_get_every_record_as_it_is_stored(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream", partitions=2)
        client = await leader.client()
        for number in range(20):
            await client.publish("t", [str(number)], acks=ALL, partition=number % 2)

        await until(lambda: agree(brokers, "t"))
        assert [marks(leader, "t")[number][1] for number in (0, 1)] == [10, 10]
        for number in (0, 1):
            first, *others = [await content(it, "t", number) for it in brokers]
            assert others == [first, first]


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_stream_goes_on_at_another_broker_with_all_that_was_confirmed(env: SimEnv, end: Killing) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        client = await leader.client()
        for number in range(20):
            await client.publish("t", [str(number)], acks=ALL)
        await end(leader)
        others = [it for it in brokers if it is not leader]
        (second,) = (await until_led(others, "t")).values()
        client = await second.client()
        await confirmed(client, "t", "20")
        assert await client.fetch("t") == [str(number) for number in range(21)]
        await leader.start()
        await until(lambda: len(in_sync(second)) == 3)


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_queue_goes_on_at_another_broker_without_records_that_were_acked(env: SimEnv, end: Killing) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="queue")
        client = await leader.client()
        for number in range(10):
            await client.publish("t", [str(number)], acks=ALL)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        acked = []
        for _ in range(4):
            event = await client.pull(subscription, 1, wait_max_ms=500)
            await client.settle(subscription, event)
            acked += values(event.batches)
        leased = await client.pull(subscription, 2, wait_max_ms=500)
        await end(leader)
        others = [it for it in brokers if it is not leader]
        (second,) = (await until_led(others, "t")).values()
        client = await second.client()
        taken = await client.taken("t")
        assert sorted([*acked, *taken], key=int) == [str(number) for number in range(10)]
        assert set(values(leased.batches)) <= set(taken)


@simulated
async def test_with_too_few_replicas_all_is_refused_at_once_and_leader_goes_on(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        others = [it for it in brokers if it is not leader]
        client = await leader.client()
        await kill(others[0])
        began_s = trio.current_time()
        await client.publish("t", ["one gone"], acks=ALL)
        assert trio.current_time() - began_s <= 3.0, "a dead follower holds a publish up for two seconds and a moment"
        await kill(others[1])
        await trio.sleep(2.5)
        began_s = trio.current_time()
        with pytest.raises(Refused, match="fewer than 2 replicas of topic t") as refusal:
            await client.publish("t", ["two gone"], acks=ALL)
        assert (refusal.value.code, trio.current_time() - began_s < 0.1) == ("partition.not_enough_replicas", True)
        with pytest.raises(Refused, match="fewer than 2 replicas of topic t"):
            await client.administer("topic.alter", name="t", settings={"kind": "both"})
        await client.publish("t", ["by the leader alone"], acks=1)
        assert await client.fetch("t") == ["one gone"], "readers see what the in-sync set has"
        await others[0].start()
        await confirmed(client, "t", "back")
        assert await client.fetch("t") == ["one gone", "by the leader alone", "back"]


@simulated
async def test_a_topic_gets_the_replicas_that_it_lacks_when_there_are_more_brokers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1)
        client = await first.client()
        await client.administer("topic.create", name="t", settings={"replicas": 3, "min_in_sync": 1})
        await until_led([first], "t")
        for number in range(5):
            await client.publish("t", [str(number)], acks=ALL)
        second, third = await world.brokers(2)
        await until(lambda: in_sync(first) == (1, 2, 3))
        await kill(first)
        (leader,) = (await until_led([second, third], "t")).values()
        assert await (await leader.client()).taken("t") == ["0", "1", "2", "3", "4"]


@simulated
async def test_a_node_with_an_empty_disk_copies_everything(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="both", partitions=2)
        client = await leader.client()
        for number in range(10):
            await client.publish("t", [str(number)], acks=ALL, partition=number % 2)
        lost = next(it for it in brokers if it is not leader)
        await kill(lost)
        lost.replace_disk()
        await until(lambda: lost.number not in sessions(leader))
        await lost.start()
        await until(lambda: len(in_sync(leader)) == 3 and agree(brokers, "t"))
        for number in marks(leader, "t"):
            assert await content(lost, "t", number) == await content(leader, "t", number)


@simulated
async def test_settings_and_subscriptions_change_at_all_replicas_and_their_logs_go_with_the_topic(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        client = await leader.client()
        await client.administer("topic.alter", name="t", settings={"partitions": 3})
        await client.administer("subscription.create", topic="t", subscription="s")
        await until(lambda: len(in_sync(leader)) == 3 and len(marks(leader, "t")) == 7)
        for number in range(6):
            await client.publish("t", [str(number)], acks=ALL, partition=number % 3)
        subscription = (await client.call(m.Subscribe("t", shared="s"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await until(lambda: agree(brokers, "t"))
        await client.call(m.Unsubscribe(subscription))
        await client.administer("subscription.delete", topic="t", subscription="s")
        await until(lambda: all(len(marks(it, "t")) == 4 for it in brokers))
        await client.administer("topic.delete", name="t")
        await until(lambda: not any("t" in it.broker.topics for it in brokers))
        for broker in brokers:
            folder = "data/segmented-log"
            await until(lambda: not any(n.endswith("t") for n in broker.env.disk.list_dir(folder)))  # noqa: B023


@simulated
async def test_a_subscription_made_anew_takes_nothing_from_a_log_that_a_replica_still_has(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        away = next(it for it in brokers if it is not leader)
        client = await leader.client()
        for number in range(4):
            await client.publish("t", [str(number)], acks=ALL)
        await client.administer("subscription.create", topic="t", subscription="s")
        subscription = (await client.call(m.Subscribe("t", shared="s"))).subscription
        for _ in range(3):
            await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await until(lambda: agree(brokers, "t"))
        await kill(away)
        await client.call(m.Unsubscribe(subscription))
        await client.administer("subscription.delete", topic="t", subscription="s")
        await client.administer("subscription.create", topic="t", subscription="s")
        subscription = (await client.call(m.Subscribe("t", shared="s"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await away.start()
        await until(lambda: len(in_sync(leader)) == 3 and agree(brokers, "t"))
        for number in marks(leader, "t"):
            assert await content(away, "t", number) == await content(leader, "t", number)


@simulated
async def test_topics_show_tells_who_leads_and_who_is_in_sync(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        shown = [(await (await it.client()).administer("topic.show", name="t"))["replicas"] for it in brokers]
        assert shown == [{"leader": leader.number, "epoch": 1, "nodes": [1, 2, 3], "in_sync": [1, 2, 3]}] * 3


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_group_goes_on_at_its_positions_at_the_next_leader(env: SimEnv, end: Killing) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        client = await leader.client()
        for number in range(10):
            await client.publish("t", [str(number)], acks=ALL)
        assert await client.taken("t", "g", 6) == ["0", "1", "2", "3", "4", "5"]
        (before,) = await client.administer("group.list", topic="t")
        await end(leader)
        others = [it for it in brokers if it is not leader]
        (second,) = (await until_led(others, "t")).values()
        client = await second.client()
        assert await client.taken("t", "g") == ["6", "7", "8", "9"]
        (after,) = await client.administer("group.list", topic="t")
        assert after["epoch"] > before["epoch"], "a member of the former leader's is fenced"
        await leader.start()
        await until(lambda: len(in_sync(second)) == 3 and agree(brokers, "t"))


@simulated
async def test_a_lower_minimum_lets_a_topic_go_on_with_fewer_replicas(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        client = await leader.client()
        for other in [it for it in brokers if it is not leader]:
            await kill(other)
        await trio.sleep(2.5)
        with pytest.raises(Refused, match="fewer than 2 replicas"):
            await client.publish("t", ["refused"], acks=ALL)
        await client.administer("topic.alter", name="t", settings={"min_in_sync": 1})
        await confirmed(client, "t", "by one")
        assert await client.fetch("t") == ["by one"]


@simulated
async def test_a_publish_that_is_confirmed_when_its_lane_has_ended_costs_the_leader_nothing(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        leader = await made(brokers, kind="stream")
        door, third = [it for it in brokers if it is not leader]
        client = await door.client()
        await client.publish("t", ["first"], acks=ALL)
        await kill(third)
        asked = await client.send(m.Publish("t", acks=ALL), [records(["second"])])
        await trio.sleep(0.5)
        env.world.sever(leader.env.name, door.env.name)
        assert (await client.code_of(asked)).startswith("peer.")
        await until(lambda: in_sync(leader) == tuple(sorted([leader.number, door.number])))
        await confirmed(client, "t", "third")
        assert await (await leader.client()).fetch("t") == ["first", "second", "third"]
