"""Leases that last as long as their consumer's connection."""

from __future__ import annotations

import pytest
from raw_client import RawClient, broker_on, connected, served, simulated, values

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

pytestmark = pytest.mark.quick
BOUND = '[topics.t]\nlease = "connection"\n'
LONG = 1_000
"""In units of ten seconds: many times the usual lease."""


async def _quiet(tens: int, *clients: RawClient) -> None:
    """Wait, and answer the broker now and then; nothing is pushed."""
    for _ in range(tens):
        for client in clients:
            assert await client.is_silent(10 / len(clients))
            await client.call(m.Ping())


async def _held(client: RawClient, *published: str) -> tuple[m.Subscribed, list[str]]:
    made = await client.call(m.Subscribe("t", credit=10))
    assert isinstance(made, m.Subscribed)
    await client.publish("t", published)
    return made, values((await client.delivery()).batches)


@served(BOUND)
async def test_a_lease_bound_to_its_connection_outlasts_any_time(client: RawClient, other: RawClient) -> None:
    made = await client.call(m.Subscribe("t", credit=10))
    await client.publish("t", ["a", "b"])
    held = await client.delivery()
    assert (made.lease_ms, values(held.batches)) == (m.CONNECTION_LEASE_MS, ["a", "b"])
    await other.call(m.Subscribe("t", credit=10))
    await _quiet(LONG, client, other)
    assert await client.settle(made.subscription, held) == []


@pytest.mark.parametrize("how", ["unsubscribe", "loss"])
@served(BOUND)
async def test_the_end_of_the_connection_or_the_subscription_ends_it(env: SimEnv, how: str) -> None:
    client, other = await connected(env), await connected(env)
    made, _ = await _held(client, "a")
    await other.call(m.Subscribe("t", credit=10))
    if how == "loss":
        await client.stream.aclose()
    else:
        await client.call(m.Unsubscribe(made.subscription))
    again = await other.delivery(1)
    assert (values(again.batches), again.message.attempt) == (["a"], 2)


@served(BOUND)
async def test_an_extension_gives_it_no_deadline(client: RawClient) -> None:
    made = await client.call(m.Subscribe("t", credit=10))
    await client.publish("t", ["a"])
    held = await client.delivery()
    for ms in (1_000, 2**32 - 1):
        assert await client.settle(made.subscription, held, m.Verdict.EXTEND, ms) == []
    await _quiet(100, client)
    assert client.lost == []
    assert await client.settle(made.subscription, held) == []


@served('[topics.t]\nlease = "10s"\n')
async def test_a_change_holds_for_leases_from_then_on(client: RawClient) -> None:
    first, _ = await _held(client, "a")
    await client.administer("topic.alter", name="t", settings={"lease": "connection"})
    shown = (await client.administer("topic.show", name="t"))["settings"]
    assert shown["lease"] == "connection"
    again = await client.delivery(11)
    assert (values(again.batches), again.message.attempt) == (["a"], 2), "the first lease had a deadline"
    await _quiet(100, client)
    assert await client.settle(first.subscription, again) == []


@simulated
async def test_a_restart_ends_it_as_well(env: SimEnv) -> None:
    async with broker_on(env, BOUND):
        await _held(await connected(env), "a")
    env.disk.kill()
    env = env.restart()
    async with broker_on(env, BOUND):
        client = await connected(env)
        await client.call(m.Subscribe("t", credit=10))
        event = await client.delivery()
        assert (values(event.batches), event.message.attempt) == (["a"], 2)
