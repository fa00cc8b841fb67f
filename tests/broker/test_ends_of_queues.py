"""Queues that end by themselves: without consumers, with a connection, or with the broker."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from raw_client import RawClient, Refused, broker_on, connected, records, served, simulated, values

from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

pytestmark = pytest.mark.quick
EXPIRING = '[topics.t]\nexpires = "10s"\n'
UNUSED = '[topics.t]\ndelete_when = "unused"\n'
EXCHANGE = '[exchanges.e]\ntype = "direct"\n'


async def _there(client: RawClient) -> list[str]:
    return [name["name"] for name in await client.administer("topic.list")]


async def _make(client: RawClient, name: str = "r", **settings: Any) -> bool:
    created: bool = (await client.administer("topic.create", name=name, settings=settings))["created"]
    return created


async def _refusal(client: RawClient, name: str = "r", **settings: Any) -> str:
    with pytest.raises(Refused) as refused:
        await _make(client, name, **settings)
    return refused.value.code


# --- without consumers -----------------------------------------------------------------------------------------------


@served(EXPIRING)
async def test_a_queue_expires_without_consumers_and_takes_its_records_along(client: RawClient) -> None:
    await client.publish("t", ["a"])
    await trio.sleep(9)
    assert await _there(client) == ["t"]
    await trio.sleep(2)
    assert await _there(client) == []
    with pytest.raises(Refused) as refused:
        await client.publish("t", ["b"])
    assert refused.value.code == "topic.unknown"


@served(EXPIRING)
async def test_the_time_begins_anew_with_each_consumer_and_each_request_to_make_the_queue(client: RawClient) -> None:
    await trio.sleep(8)
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    await trio.sleep(30)
    assert await _there(client) == ["t"]
    await client.call(m.Unsubscribe(worker))
    await trio.sleep(8)
    assert not await _make(client, "t", expires="10s")
    await trio.sleep(8)
    assert await _there(client) == ["t"]
    await trio.sleep(3)
    assert await _there(client) == []


@served("[topics.t]\n")
async def test_a_time_can_be_set_and_taken_back_live(client: RawClient) -> None:
    await client.administer("topic.alter", name="t", settings={"expires": "10s"})
    await trio.sleep(8)
    await client.administer("topic.alter", name="t", settings={"expires": "never"})
    await trio.sleep(30)
    assert await _there(client) == ["t"]
    await client.administer("topic.alter", name="t", settings={"expires": "10s"})
    await trio.sleep(11)
    assert await _there(client) == []


@pytest.mark.parametrize("loss", [True, False])
@served(UNUSED)
async def test_an_unused_queue_ends_with_its_last_consumer_and_not_before_the_first(env: SimEnv, loss: bool) -> None:
    first, second, other = [await connected(env) for _ in range(3)]
    await trio.sleep(20)
    assert await _there(other) == ["t"]
    for client in (first, second):
        await client.call(m.Subscribe("t", credit=1))
    await first.call(m.Unsubscribe(1))
    await trio.sleep(1)
    assert await _there(other) == ["t"]
    if loss:
        await second.stream.aclose()
    else:
        await second.call(m.Unsubscribe(1))
    await trio.sleep(0.1)
    assert await _there(other) == []


@simulated
async def test_a_broker_that_stops_deletes_nothing_because_its_consumers_leave(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        async with broker_on(env, UNUSED):
            client = await connected(env)
            await client.publish("t", ["a"])
            await client.call(m.Subscribe("t", credit=1))
            assert values((await client.delivery()).batches) == ["a"]
            nursery.start_soon(_leave_when_asked, client)
    env.disk.kill()
    env = env.restart()
    async with broker_on(env, UNUSED):
        client = await connected(env)
        assert await client.fetch("t") == ["a"]


async def _leave_when_asked(client: RawClient) -> None:
    while not isinstance((await client.push()).message, m.Goodbye):
        pass
    await client.call(m.Unsubscribe(1))
    await trio.sleep(0.5)
    await client.stream.aclose()


@served(EXPIRING + '[topics.s]\ndead_letter = "t"\n')
async def test_a_queue_that_takes_dead_letters_of_another_is_kept_and_tried_again(client: RawClient) -> None:
    await trio.sleep(30)
    assert await _there(client) == ["s", "t"]
    await client.administer("topic.delete", name="s")
    await trio.sleep(61)
    assert await _there(client) == []


# --- with the broker, with a connection ------------------------------------------------------------------------------


@simulated
async def test_a_queue_in_memory_leaves_nothing_behind(env: SimEnv) -> None:
    async with broker_on(env, EXCHANGE) as broker:
        client = await connected(env)
        before = await _stored(env)
        assert await _make(client, lifetime="broker", bindings=[{"exchange": "e", "key": "k"}])
        await client.administer("exchange.bind", exchange="e", topic="r", key="live")
        await client.administer("topic.alter", name="r", settings={"lease": "5s"})
        assert await _stored(env) == before, "the metadata store knows nothing of it"
        assert broker.catalog.topics["r"].settings.storage == "dram"
        for key in ("k", "live"):
            await client.call(m.Publish("e", to_exchange=True), [records(["v"], routing_key=key)])
        assert await client.taken("r") == ["v", "v"]
        exported = await client.administer("definitions.export")
        assert exported["topics"] == []
    env.disk.kill()
    env = env.restart()
    async with broker_on(env, EXCHANGE):
        client = await connected(env)
        assert await _there(client) == []
        assert (await client.administer("exchange.show", name="e"))["bindings"] == []
        assert await _make(client, kind="stream"), "the name is free"


async def _stored(env: SimEnv) -> bytes:
    file = env.disk.open("data/metadata.json")
    try:
        return bytes(await file.read(0, file.size()))
    finally:
        file.close()


@served("")
async def test_the_queue_of_a_connection_is_consumed_by_it_alone_and_ends_with_it(env: SimEnv) -> None:
    owner, other = await connected(env), await connected(env)
    assert await _make(owner, lifetime="connection")
    await other.publish("r", ["a"])
    with pytest.raises(Refused) as refused:
        await other.call(m.Subscribe("r", credit=1))
    assert refused.value.code == "topic.exclusive"
    assert await _refusal(other, lifetime="connection") == "topic.exclusive"
    assert not await _make(owner, lifetime="connection")
    await owner.call(m.Subscribe("r", credit=1))
    assert values((await owner.delivery()).batches) == ["a"]
    await owner.stream.aclose()
    await trio.sleep(0.1)
    assert await _there(other) == []
    assert await _make(other, lifetime="connection"), "the name is free"


@served("")
async def test_equal_connections_own_different_queues(env: SimEnv) -> None:
    """All callers without a login share their rights."""
    clients = [await connected(env, name="same") for _ in range(3)]
    for number, client in enumerate(clients):
        await _make(client, f"r{number}", lifetime="connection")
    await clients[1].stream.aclose()
    await trio.sleep(0.1)
    assert await _there(clients[0]) == ["r0", "r2"]


@served("")
async def test_a_queue_that_is_made_as_its_connection_ends_is_not_left_behind(env: SimEnv, broker: Broker) -> None:
    for _ in range(20):
        client = await connected(env)
        await client.send(m.Administer("topic.create", '{"name":"r","settings":{"lifetime":"connection"}}'))
        await client.stream.aclose()
        await trio.sleep(0.1)
        assert "r" not in broker.catalog.topics


@served("[storage.segmented-log]\n")
async def test_what_can_not_be_asked_for_has_a_code(client: RawClient) -> None:
    assert await _refusal(client, lifetime="broker", storage="segmented-log") == "topic.lifetime_unsupported"
    assert await _refusal(client, lifetime="broker", kind="stream") == "config.invalid"
    assert await _refusal(client, expires="1m", kind="both") == "config.invalid"
    assert await _refusal(client, delete_when="unused", kind="stream") == "config.invalid"
    assert await _refusal(client, lifetime="forever") == "config.invalid"
    assert await _refusal(client, expires="0s") == "config.invalid"
    await _make(client, lifetime="broker")
    assert await _refusal(client, "u", dead_letter="r") == "config.invalid", "it would be kept without its target"
    with pytest.raises(Refused) as refused:
        await client.administer("topic.alter", name="r", settings={"lifetime": "connection"})
    assert refused.value.code == "config.not_live"
    await _make(client, "u", dead_letter="r", lifetime="broker")
