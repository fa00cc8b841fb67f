"""Exchanges that end by themselves, with their last binding or with the broker; and internal ones."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from raw_client import RawClient, Refused, broker_on, connected, records, served, simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

pytestmark = pytest.mark.quick
TOPIC = "[topics.t]\n"
UNUSED = '[exchanges.e]\ntype = "direct"\ndelete_when = "unused"\n' + TOPIC
INTERNAL = """
[exchanges.inner]
type = "fanout"
internal = true
[[exchanges.inner.bindings]]
exchange = "outer"
[exchanges.outer]
type = "fanout"
[topics.t]
[[topics.t.bindings]]
exchange = "inner"
[topics.jobs]
dead_letter_exchange = "inner"
max_deliveries = 1
"""


async def _there(client: RawClient) -> list[str]:
    return [exchange["name"] for exchange in await client.administer("exchange.list")]


async def _make(client: RawClient, name: str, **settings: Any) -> bool:
    created: bool = (await client.administer("exchange.create", name=name, settings=settings))["created"]
    return created


async def _refusal(client: RawClient, verb: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        await client.administer(verb, **arguments)
    return refused.value.code


async def _publish(client: RawClient, exchange: str, value: str, key: str = "") -> None:
    await client.call(m.Publish(exchange, to_exchange=True), [records([value], routing_key=key)])


# --- with the last binding -------------------------------------------------------------------------------------------


@served(UNUSED)
async def test_an_exchange_ends_with_its_last_binding_and_not_before_the_first(client: RawClient) -> None:
    await client.administer("exchange.unbind", exchange="e", topic="t", key="a")
    await trio.sleep(5)
    assert await _there(client) == ["e"], "it never had one"
    for key in ("a", "b"):
        await client.administer("exchange.bind", exchange="e", topic="t", key=key)
    await client.administer("exchange.unbind", exchange="e", topic="t", key="a")
    await trio.sleep(1)
    assert await _there(client) == ["e"]
    await client.administer("exchange.unbind", exchange="e", topic="t", key="b")
    await trio.sleep(0.1)
    assert await _there(client) == []
    with pytest.raises(Refused) as refused:
        await _publish(client, "e", "lost")
    assert refused.value.code == "exchange.unknown"


@pytest.mark.parametrize("how", ["topic.delete", "topic.alter", "connection"])
@served(UNUSED)
async def test_a_binding_that_goes_with_its_topic_counts(env: SimEnv, how: str) -> None:
    client, owner = await connected(env), await connected(env)
    lifetime = "connection" if how == "connection" else "kept"
    bindings = [{"exchange": "e", "key": "k"}]
    await owner.administer("topic.create", name="r", settings={"lifetime": lifetime, "bindings": bindings})
    assert await _there(client) == ["e"]
    if how == "connection":
        await owner.stream.aclose()
    else:
        await client.administer(how, name="r", **({"settings": {"bindings": []}} if how == "topic.alter" else {}))
    await trio.sleep(0.1)
    assert await _there(client) == []


@served(UNUSED)
async def test_an_alter_that_replaces_the_last_binding_keeps_the_exchange(client: RawClient) -> None:
    await client.administer("topic.alter", name="t", settings={"bindings": [{"exchange": "e", "key": "a"}]})
    await client.administer("topic.alter", name="t", settings={"bindings": [{"exchange": "e", "key": "b"}]})
    await trio.sleep(1)
    assert await _there(client) == ["e"]


@served(UNUSED)
async def test_an_exchange_takes_the_bindings_to_it_along_so_that_a_chain_ends(client: RawClient) -> None:
    bindings = [{"exchange": "e", "key": "k"}]
    await _make(client, "f", type="fanout", delete_when="unused", bindings=bindings)
    await client.administer("exchange.bind", exchange="f", topic="t")
    await client.administer("exchange.unbind", exchange="f", topic="t")
    await trio.sleep(0.1)
    assert await _there(client) == []


@served(UNUSED + '[topics.jobs]\ndead_letter_exchange = "e"\n')
async def test_an_exchange_that_a_setting_names_stays(client: RawClient) -> None:
    await client.administer("exchange.bind", exchange="e", topic="t", key="a")
    await client.administer("exchange.unbind", exchange="e", topic="t", key="a")
    await trio.sleep(1)
    assert await _there(client) == ["e"]


@simulated
async def test_what_an_exchange_is_survives_a_restart(env: SimEnv) -> None:
    async with broker_on(env, TOPIC):
        client = await connected(env)
        await _make(client, "e", type="direct", delete_when="unused", internal=True)
        await client.administer("exchange.bind", exchange="e", topic="t", key="a")
    async with broker_on(env, TOPIC):
        client = await connected(env)
        shown = await client.administer("exchange.show", name="e")
        assert shown["settings"] == {"internal": True, "delete_when": "unused"}
        assert not await _make(client, "e", type="direct", delete_when="unused", internal=True)
        assert await _refusal(client, "exchange.create", name="e", settings={"type": "direct"}) == "topic.exists"
        await client.administer("exchange.unbind", exchange="e", topic="t", key="a")
        await trio.sleep(0.1)
        assert await _there(client) == []


# --- with the broker -------------------------------------------------------------------------------------------------


@simulated
async def test_a_transient_exchange_leaves_nothing_behind(env: SimEnv) -> None:
    async with broker_on(env, TOPIC):
        client = await connected(env)
        before = await _stored(env)
        assert await _make(client, "e", type="fanout", lifetime="broker")
        await client.administer("topic.create", name="r", settings={"lifetime": "broker"})
        await client.administer("exchange.bind", exchange="e", topic="r")
        await _make(client, "f", type="fanout", lifetime="broker", bindings=[{"exchange": "e", "key": ""}])
        assert await _stored(env) == before, "the metadata store knows nothing of it"
        await _publish(client, "e", "v")
        assert await client.taken("r") == ["v"]
        exported = await client.administer("definitions.export")
        assert exported["exchanges"] == []
    env.disk.kill()
    env = env.restart()
    async with broker_on(env, TOPIC):
        client = await connected(env)
        assert await _there(client) == []
        assert await _make(client, "e", type="topic"), "the name is free"


async def _stored(env: SimEnv) -> bytes:
    file = env.disk.open("data/metadata.json")
    try:
        return bytes(await file.read(0, file.size()))
    finally:
        file.close()


@served(TOPIC + '[exchanges.kept]\ntype = "fanout"\n')
async def test_nothing_kept_depends_on_an_exchange_that_is_not(client: RawClient) -> None:
    await _make(client, "e", type="fanout", lifetime="broker", alternate="kept")
    bindings = [{"exchange": "e", "key": ""}]
    bound = {"exchange": "e", "key": ""}
    assert await _refusal(client, "exchange.bind", topic="t", **bound) == "exchange.binding_invalid"
    assert await _refusal(client, "exchange.bind", target_exchange="kept", **bound) == "exchange.binding_invalid"
    for verb, settings in (
        ("topic.create", {"bindings": bindings}),
        ("exchange.create", {"bindings": bindings}),
    ):
        assert await _refusal(client, verb, name="n", settings=settings) == "exchange.binding_invalid"
    altered = {"bindings": bindings}
    assert await _refusal(client, "topic.alter", name="t", settings=altered) == "exchange.binding_invalid"
    for verb, settings in (
        ("topic.create", {"dead_letter_exchange": "e"}),
        ("exchange.create", {"alternate": "e"}),
    ):
        assert await _refusal(client, verb, name="n", settings=settings) == "config.invalid"
    assert await _refusal(client, "exchange.create", name="n", settings={"lifetime": "connection"}) == "config.invalid"


# --- internal --------------------------------------------------------------------------------------------------------


@served(INTERNAL)
async def test_an_internal_exchange_takes_messages_from_exchanges_and_dead_letters_alone(client: RawClient) -> None:
    with pytest.raises(Refused) as refused:
        await _publish(client, "inner", "a")
    assert refused.value.code == "exchange.internal"
    await _publish(client, "outer", "b")
    await client.publish("jobs", ["c"])
    await client.call(m.Subscribe("jobs", credit=1))
    delivery = await client.delivery()
    rejected = m.Settlement(0, delivery.message.delivery_id, 0, 1, m.Verdict.REJECT)
    await client.call(m.Settle(1, [rejected]))
    await trio.sleep(1)
    assert await client.taken("t") == ["b", "c"]
