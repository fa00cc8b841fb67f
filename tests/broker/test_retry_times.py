"""Times of retries: kept over restarts, by the wall clock; while a broker runs, no jump of that clock moves them."""

from __future__ import annotations

import pytest
import trio
from raw_client import RawClient, broker_on, connected, simulated, values

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

ACK, NACK, *_ = m.Verdict
QUEUE = '[topics.t]\nlease = "10s"\n'
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


async def taken(client: RawClient) -> tuple[int, Event]:
    """A subscription with a credit of one, and its first delivery."""
    subscription = (await client.call(m.Subscribe("t", credit=1))).subscription
    return subscription, await client.delivery(wait_s=86_400)


async def nack(env: SimEnv, delay_ms: int) -> None:
    """Publish a record, take it and return it with a delay, over a connection of its own."""
    client = await connected(env)
    await client.publish("t", ["job"])
    subscription, held = await taken(client)
    assert await client.settle(subscription, held, NACK, ms=delay_ms) == []
    await client.stream.aclose()


@simulated
async def test_a_retry_comes_after_a_restart_when_it_would_have_come_without_one(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        await nack(env, 60_000)
        began = trio.current_time()
        await trio.sleep(20)
    async with broker_on(env, QUEUE):
        _, delivery = await taken(await connected(env))
        assert (values(delivery.batches), delivery.message.attempt) == (["job"], 2)
        assert 60 <= trio.current_time() - began < 61


@simulated
async def test_a_retry_that_was_due_while_the_broker_was_down_comes_at_once(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        await nack(env, 60_000)
    await trio.sleep(3600)
    async with broker_on(env, QUEUE):
        began = trio.current_time()
        await taken(await connected(env))
        assert trio.current_time() - began < 1


@simulated
async def test_a_clock_that_was_set_back_before_a_start_delays_a_retry_and_loses_nothing(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        await nack(env, 60_000)
        began = trio.current_time()
    env.clock.jump(-HOUR_MS)
    async with broker_on(env, QUEUE):
        await trio.sleep(3600)
        await taken(await connected(env))
        assert 3659.9 <= trio.current_time() - began < 3661


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
@simulated
async def test_a_jump_of_the_clock_of_a_running_broker_moves_no_retry_and_no_lease(env: SimEnv, jump_ms: int) -> None:
    async with broker_on(env, QUEUE):
        await nack(env, 60_000)
        began = trio.current_time()
        env.clock.jump(jump_ms)
        client = await connected(env)
        subscription, held = await taken(client)
        assert 60 <= trio.current_time() - began < 61
        env.clock.jump(jump_ms)
        await trio.sleep(9)
        assert await client.settle(subscription, held, ACK) == [], "the lease lasts"
