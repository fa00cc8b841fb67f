"""Exchanges of a cluster that end with a broker, or with their last binding."""

from __future__ import annotations

from typing import Any

import pytest
from broker_world import SimBroker, broker_world
from cluster_world import until
from raw_client import RawClient, Refused, records
from simulated_time import simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

pytestmark = pytest.mark.quick
TOPIC = "[topics.t]\n"


async def _make(client: RawClient, name: str, **settings: Any) -> bool:
    created: bool = (await client.administer("exchange.create", name=name, settings=settings))["created"]
    return created


async def _publish(client: RawClient, exchange: str, value: str, key: str = "") -> None:
    await client.call(m.Publish(exchange, to_exchange=True), [records([value], routing_key=key)])


async def _refusal(client: RawClient, verb: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        await client.administer(verb, **arguments)
    return refused.value.code


async def _until_gone(name: str, brokers: list[SimBroker]) -> None:
    await until(lambda: all(name not in it.broker.routers for it in brokers))


async def _until_there(name: str, brokers: list[SimBroker]) -> None:
    await until(lambda: all(name in it.broker.routers for it in brokers))


async def _until_bound(exchange: str, count: int, brokers: list[SimBroker]) -> None:
    await until(lambda: all(len(it.broker.routers[exchange].bindings()) == count for it in brokers))


@simulated
async def test_an_unused_exchange_ends_at_all_brokers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=TOPIC)
        first, second = await brokers[0].client(), await brokers[1].client()
        await _make(first, "e", type="direct", delete_when="unused")
        await _until_there("e", brokers)
        await second.administer("exchange.bind", exchange="e", topic="t", key="a")
        await _until_bound("e", 1, brokers)
        await first.administer("exchange.unbind", exchange="e", topic="t", key="a")
        await _until_gone("e", brokers)
        assert "exchanges/e" not in world.store.content()
        assert all(it.broker.state == "ready" for it in brokers)


@simulated
async def test_a_binding_that_ends_with_a_lost_broker_is_the_last_one_too(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, *others = await world.brokers()
        client = await holder.client()
        await _make(client, "e", type="direct", delete_when="unused")
        bindings = [{"exchange": "e", "key": "k"}]
        await client.administer("topic.create", name="r", settings={"lifetime": "broker", "bindings": bindings})
        await _until_bound("e", 1, others)
        holder.env.crash()
        await holder.ended()
        await _until_gone("e", others)


@simulated
async def test_a_transient_exchange_is_at_all_brokers_and_ends_with_its_own(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, *others = brokers = await world.brokers()
        owner, client = await holder.client(), await others[0].client()
        await _make(owner, "e", type="direct", lifetime="broker")
        await _until_there("e", brokers)
        bindings = [{"exchange": "e", "key": "k"}]
        await client.administer("topic.create", name="r", settings={"lifetime": "broker", "bindings": bindings})
        await _until_bound("e", 1, brokers)
        await _publish(await others[1].client(), "e", "a", "k")
        assert await client.taken("r") == ["a"]
        assert await _refusal(client, "topic.create", name="u", settings={"bindings": bindings}) == (
            "exchange.binding_invalid"
        )
        holder.env.crash()
        await holder.ended()
        await _until_gone("e", others)
        assert "exchanges/e" not in world.store.content()


@simulated
async def test_bindings_of_what_lives_wait_for_an_exchange_of_the_name_at_all_brokers(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_world(env) as world:
        holder, *others = brokers = await world.brokers(toml='[exchanges.other]\ntype = "fanout"\n')
        client = await others[0].client()
        await _make(await holder.client(), "e", type="direct", lifetime="broker")
        await _until_there("e", brokers)
        bindings = [{"exchange": "e", "key": "declared"}]
        await client.administer("topic.create", name="r", settings={"lifetime": "broker", "bindings": bindings})
        await _make(client, "f", type="fanout", lifetime="broker", bindings=bindings)
        await client.administer("exchange.bind", exchange="e", topic="r", key="k")
        await _until_bound("e", 3, brokers)
        holder.env.crash()
        await holder.ended()
        await _until_gone("e", others)
        others += await world.brokers(1)
        await client.administer("exchange.bind", exchange="other", topic="r")
        await _until_bound("other", 1, others)
        await _make(client, "e", type="direct", lifetime="broker")
        await _until_there("e", others)
        await _until_bound("e", 3, others)
        await _publish(await others[1].client(), "e", "a", "k")
        assert await client.taken("r") == ["a"]
        assert [record.getMessage() for record in caplog.records if "can't follow" in record.getMessage()] == []


@simulated
async def test_a_binding_to_a_transient_exchange_is_written_by_its_holder(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, *others = brokers = await world.brokers(toml='[exchanges.kept]\ntype = "fanout"\n')
        client = await others[0].client()
        await _make(await holder.client(), "e", type="fanout", lifetime="broker")
        await _until_there("e", brokers)
        await client.administer("exchange.bind", exchange="kept", target_exchange="e")
        await _until_bound("kept", 1, brokers)
        holder.env.crash()
        await holder.ended()
        await _until_gone("e", others)
        assert (await client.administer("exchange.show", name="kept"))["bindings"] == []
        await holder.start()
        assert await _make(await holder.client(), "e", type="topic"), "the name is free"


@simulated
async def test_a_broker_that_is_back_before_its_session_ends_makes_its_exchange_anew(env: SimEnv) -> None:
    async with broker_world(env) as world:
        holder, *others = await world.brokers()
        await _make(await holder.client(), "e", type="fanout", lifetime="broker")
        await _until_there("e", others)
        holder.env.crash()
        await holder.ended()
        await holder.start()
        assert "e" in others[0].broker.routers
        client = await holder.client()
        assert await client.administer("exchange.list") == []
        assert await _make(client, "e", type="direct", lifetime="broker")
        await until(lambda: all(it.broker.routers["e"].kind == "direct" for it in others))


@simulated
async def test_a_cluster_of_an_older_level_refuses_what_its_brokers_may_not_know(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (broker,) = await world.brokers(1, level=2)
        client = await broker.client()
        for settings in ({"internal": True}, {"delete_when": "unused"}, {"lifetime": "broker"}):
            assert await _refusal(client, "exchange.create", name="e", settings=settings) == "cluster.level"
        assert await _make(client, "e", type="fanout")
        assert world.store.content()["exchanges/e"].value["settings"].keys() == {"type", "bindings"}
