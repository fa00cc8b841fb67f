"""Topics of a cluster that end with the broker that holds them, or with a connection to it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from broker_world import SimBroker, broker_world
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from simulated_time import simulated
from test_consumers_elsewhere import apart, message_of, subscribed

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

pytestmark = pytest.mark.quick


async def _make(client: RawClient, name: str = "r", **settings: Any) -> bool:
    about = {"lifetime": "broker", **settings}
    created: bool = (await client.administer("topic.create", name=name, settings=about))["created"]
    return created


async def _there(client: RawClient) -> list[str]:
    return [topic["name"] for topic in await client.administer("topic.list")]


async def _refusal(client: RawClient, verb: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        await client.administer(verb, **arguments)
    return refused.value.code


def _keys(broker: SimBroker) -> set[str]:
    return {key for key in broker.world.store.content() if key.startswith("topics/")}


@simulated
async def test_other_brokers_find_the_holder_and_pass_on_publishes_and_consumers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door, third = await world.brokers(replicas=3)
        owner, publisher, worker = await holder.client(), await door.client(), await third.client()
        assert await _make(owner)
        assert holder.broker.topic("r").led_by is None, "without an election"
        for client in (publisher, worker):
            assert not await _make(client), "it is known at all brokers when the answer comes"
        await publisher.publish("r", ["a"])
        await subscribed(worker, "r", credit=5)
        delivery = await worker.delivery()
        assert values(delivery.batches) == ["a"]
        assert await worker.settle(1, delivery) == []
        (shown,) = [it for it in await publisher.administer("topic.list") if it["name"] == "r"]
        assert (shown["settings"]["replicas"], shown["queue"]["unsettled"]) == (1, 0)
        assert not [key for key in world.store.content() if key.startswith("parts/")], "the controller places nothing"


@simulated
async def test_a_transient_topic_ends_with_its_broker_and_the_name_is_free(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door, third = await world.brokers(toml='[exchanges.e]\ntype = "direct"\n')
        await _make(await holder.client(), bindings=[{"exchange": "e", "key": "k"}])
        client, worker = await door.client(), await third.client()
        await client.call(m.Publish("e", to_exchange=True), [records(["a"], routing_key="k")])
        await subscribed(worker, "r", credit=5)
        assert values((await worker.delivery()).batches) == ["a"]
        holder.env.crash()
        await holder.ended()
        await until(lambda: all("r" not in it.broker.topics for it in (door, third)))
        assert await _there(client) == []
        assert (await client.administer("exchange.show", name="e"))["bindings"] == []
        assert (await message_of(worker, m.Ended)).code == "peer.unreachable"
        await client.administer("topic.create", name="r", settings={"kind": "stream"})
        await client.publish("r", ["b"])
        await holder.start()
        assert await (await holder.client()).fetch("r") == ["b"], "the name is another topic's"


@simulated
async def test_a_broker_that_is_back_before_its_session_ends_makes_its_topics_anew(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2)
        await _make(await holder.client())
        other = await door.client()
        await other.publish("r", ["a"])
        holder.env.crash()
        await holder.ended()
        await holder.start()
        assert "r" in door.broker.topics, "the session of the process before has not ended"
        client = await holder.client()
        assert await _there(client) == []
        assert await _make(client)
        await trio.sleep(30)
        assert await _there(other) == ["r"], "it is under the new session"
        await other.publish("r", ["b"])
        assert await client.taken("r") == ["b"]


@simulated
async def test_a_session_that_is_lost_takes_the_topics_along_though_the_broker_lives(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2)
        owner, other = await holder.client(), await door.client()
        await _make(owner)
        await subscribed(owner, "r")
        world.store.end_leases("machine1")
        await until(lambda: all("r" not in it.broker.topics for it in (holder, door)))
        assert (await message_of(owner, m.Ended)).code == "topic.unknown"
        assert holder.broker.cluster is not None
        session = holder.broker.cluster.registered_session
        assert (
            await _refusal(owner, "topic.create", name="r", settings={"lifetime": "broker"}) == "metadata.unavailable"
        )
        await until(lambda: holder.broker.cluster.registered_session != session)
        assert await _make(owner)
        await other.publish("r", ["a"])
        assert await owner.taken("r") == ["a"]


@simulated
async def test_the_queue_of_a_connection_ends_with_it_at_all_brokers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door, _ = await world.brokers()
        owner, other = await holder.client(), await door.client()
        assert await _make(owner, lifetime="connection")
        assert await _refusal(other, "topic.create", name="r", settings={"lifetime": "connection"}) == "topic.exclusive"
        with pytest.raises(Refused) as refused:
            await other.call(m.Subscribe("r", credit=1))
        assert refused.value.code == "topic.exclusive"
        await other.publish("r", ["a"])
        await subscribed(owner, "r", credit=1)
        assert values((await owner.delivery()).batches) == ["a"]
        await owner.stream.aclose()
        await until(lambda: "r" not in door.broker.topics)
        assert _keys(door) == set()
        assert await _make(other, lifetime="connection"), "the name is free"


@simulated
async def test_the_queue_of_a_connection_ends_though_the_store_is_away(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2)
        owner = await holder.client()
        await _make(owner, lifetime="connection")
        world.store.stop()
        await owner.stream.aclose()
        await trio.sleep(20)
        assert "r" in door.broker.topics
        world.store.start()
        await until(lambda: all("r" not in it.broker.topics for it in (holder, door)))
        assert holder.broker.state == "ready"


@simulated
async def test_names_clash_with_those_of_topics_that_are_kept(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue")
        client, other = await door.client(), await third.client()
        assert await _refusal(client, "topic.create", name="t", settings={"lifetime": "broker"}) == "topic.exists"
        await _make(client)
        assert await _refusal(other, "topic.create", name="r", settings={}) == "topic.exists"


@simulated
async def test_changes_at_other_brokers_are_made_by_the_holder_and_stay_under_its_session(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door, third = await world.brokers(toml='[exchanges.e]\ntype = "direct"\n')
        await _make(await holder.client())
        client, other = await door.client(), await third.client()
        await client.administer("topic.alter", name="r", settings={"lease": "5s"})
        await client.administer("exchange.bind", exchange="e", topic="r", key="k")
        await client.administer("exchange.bind", exchange="e", topic="r", key="l")
        await other.administer("exchange.unbind", exchange="e", topic="r", key="l")
        await until(lambda: [len(it.broker.topic("r").live_bindings) for it in (holder, door, third)] == [1, 1, 1])
        await other.call(m.Publish("e", to_exchange=True), [records(["a"], routing_key="k")])
        assert await client.taken("r") == ["a"]
        holder.env.crash()
        await holder.ended()
        await until(lambda: "r" not in door.broker.topics)
        assert _keys(door) == set()


@simulated
async def test_any_broker_deletes_a_transient_topic(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2)
        owner = await holder.client()
        await _make(owner)
        await subscribed(owner, "r")
        await (await door.client()).administer("topic.delete", name="r")
        await until(lambda: "r" not in holder.broker.topics)
        assert (await message_of(owner, m.Ended)).code == "topic.unknown"


@simulated
async def test_a_transient_topic_without_consumers_is_deleted_by_its_holder(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2)
        await _make(await holder.client(), delete_when="unused")
        worker = await door.client()
        await subscribed(worker, "r")
        await worker.stream.aclose()
        await until(lambda: all("r" not in it.broker.topics for it in (holder, door)))
        assert _keys(door) == set()


@simulated
async def test_what_can_not_be_asked_for_has_a_code_in_a_cluster(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2, broker_toml="", replicas=2)
        client = await holder.client()
        for wrong in ({"replicas": 2}, {"kind": "stream"}):
            settings = {"lifetime": "broker", **wrong}
            assert await _refusal(client, "topic.create", name="r", settings=settings) == "config.invalid"
        await _make(client)
        settings = {"dead_letter": "r"}
        assert await _refusal(client, "topic.create", name="u", settings=settings) == "config.invalid"
        assert (
            await _refusal(await door.client(), "topic.alter", name="r", settings={"replicas": 2}) == "config.invalid"
        )


@simulated
async def test_a_cluster_of_an_older_level_has_no_transient_topics(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (broker,) = await world.brokers(1, level=2)
        settings = {"lifetime": "broker"}
        assert await _refusal(await broker.client(), "topic.create", name="r", settings=settings) == "cluster.level"


@simulated
async def test_a_former_leader_does_not_delete_a_topic_that_is_used_at_the_next_one(env: SimEnv) -> None:
    """Its consumers left while it did not run, and it hears of that before it hears of its loss."""
    async with broker_world(env) as world:
        leader, (door, _) = await apart(world, kind="queue", delete_when="unused")
        topic = leader.broker.topic("t")
        (key,) = [key for key in world.store.content() if key.startswith("parts/")]
        part = world.store.content()[key].value
        next_leader = {**part, "leader": door.number, "epoch": part["epoch"] + 1}
        world.store.slow_watches(f"machine{leader.number}", (2.0, 2.0))
        await world.store.client(env).put_all({key: next_leader}, {})
        await leader.broker.administration.endings.delete_unused(topic)
        assert "t" in door.broker.topics


@simulated
async def test_an_entry_of_which_its_broker_never_heard_is_no_topic_that_it_has(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, door = await world.brokers(2)
        client = await holder.client()
        world.store.cut("machine1", requests=False)
        with pytest.raises(EOFError):  # The client is silent for too long, and the broker tries for a while.
            await _make(client)
        await trio.sleep(120)
        assert "r" in door.broker.topics
        world.store.heal("machine1")
        await until(lambda: holder.broker.cluster is not None and holder.broker.cluster.view.is_whole)
        client, other = await holder.client(), await door.client()
        assert await _there(client) == []
        assert await _make(client), "it is made anew"
        await other.publish("r", ["a"])
        assert await client.taken("r") == ["a"]
