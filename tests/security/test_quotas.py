"""Quotas: rates over all connections of a user, kept by reading and delivering later; others are not held up."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_client import RawClient, Refused, connected, records, served
from test_rights import EVERYTHING, Rights

from linn.core.broker.broker import Broker
from linn.core.security.quota import PAUSE_S_MAX, Limits, Quota
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

FILE = """
[users.root]
roles = ["administrator"]
[topics.q]
storage = "dram"
[topics.s]
kind = "stream"
storage = "dram"
"""
RATE = 100_000
SECONDS = 20


async def _limit(broker: Broker, **limits: int) -> Rights:
    rights = Rights(broker)
    await rights.begin()
    await rights.are(EVERYTHING)
    await rights.perform("user.alter", name="anonymous", limits=limits)
    return rights


async def _at_full_rate(client: RawClient, until_s: float, size: int) -> int:
    """Publish one message after the other; returns the bytes confirmed by then."""
    confirmed = 0
    with trio.move_on_at(until_s):
        while True:
            await client.publish("q", ["x" * size])
            confirmed += size
    return confirmed


@served(FILE)
async def test_two_connections_of_a_user_publish_together_at_its_rate(broker: Broker, env: SimEnv) -> None:
    await _limit(broker, receive_bytes_per_s=RATE)
    clients, confirmed = [await connected(env) for _ in range(2)], list[int]()

    async def publish(client: RawClient) -> None:
        confirmed.append(await _at_full_rate(client, until_s, 1_000))

    until_s = trio.current_time() + SECONDS
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(publish, client)
    assert 0.6 * RATE * SECONDS < sum(confirmed) < 1.1 * RATE * (SECONDS + 1)
    assert min(confirmed) > 0.3 * sum(confirmed)


@served(FILE)
async def test_requests_are_limited_too(broker: Broker, env: SimEnv) -> None:
    await _limit(broker, requests_per_s=50)
    client, answered = await connected(env), 0
    with trio.move_on_after(SECONDS):
        while True:
            await client.call(m.Ping())
            answered += 1
    assert 50 * SECONDS * 0.9 < answered < 50 * (SECONDS + 2)


@pytest.mark.parametrize("way", ["push", "pull", "fetch"])
def test_deliveries_keep_the_rate(way: str) -> None:
    @served(FILE)
    async def scenario(broker: Broker, env: SimEnv) -> None:
        rights = await _limit(broker)
        client, topic = await connected(env), "s" if way == "fetch" else "q"
        for _ in range(50):
            await client.call(m.Publish(topic), [records(["x" * 1_000] * 50)])
        await rights.perform("user.alter", name="anonymous", limits={"send_bytes_per_s": RATE})
        subscription = (await client.call(m.Subscribe("q", credit=10_000 if way == "push" else 0))).subscription
        received = offset = 0
        with trio.move_on_after(SECONDS):
            while True:
                if way == "push":
                    event = await client.delivery(SECONDS * 2)
                elif way == "pull":
                    event = await client.pull(subscription, 50, wait_max_ms=1_000)
                else:
                    event = await client.ask(m.Fetch("s", 0, offset, bytes_max=50_000))
                    offset = event.message.next_offset
                received += sum(batch.size for batch in event.batches)
        assert 0.8 * RATE * SECONDS < received < RATE * (SECONDS + 1) + 1_000_000  # One delivery may overdraw it.

    scenario()


@served(FILE)
async def test_a_limit_that_is_lifted_holds_nobody_up_for_longer_than_a_pause(broker: Broker, env: SimEnv) -> None:
    rights = await _limit(broker, receive_bytes_per_s=1024)
    client = await connected(env)
    await client.publish("q", ["x" * 100_000])
    begin_s = trio.current_time()
    await rights.perform("user.alter", name="anonymous", limits={"receive_bytes_per_s": 0})
    await client.publish("q", ["y"])
    assert trio.current_time() - begin_s <= PAUSE_S_MAX + 1


@served(FILE)
async def test_a_paused_client_is_not_taken_for_a_dead_one(broker: Broker, env: SimEnv) -> None:
    await _limit(broker, receive_bytes_per_s=1024)
    client = await connected(env)
    await client.publish("q", ["x" * 300_000])  # Five minutes of its rate, and many keepalives.
    assert await client.code_of(await client.send(m.Publish("q"), [records(["y"])])) == ""


@served(FILE)
async def test_wrong_limits_are_refused(broker: Broker, client: RawClient) -> None:
    rights = await _limit(broker, requests_per_s=5)
    for limits in ({"requests": 5}, {"receive_bytes_per_s": 10}, {"requests_per_s": -1}):
        with pytest.raises(Exception, match=r"limits|least|0"):
            await rights.perform("user.alter", name="anonymous", limits=limits)
    assert (await rights.perform("user.show", name="anonymous"))["limits"] == {"requests_per_s": 5}
    with pytest.raises(Refused):
        await client.administer("user.create", name="x", limits={"requests": 5})


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5_000)), max_size=50))
def test_no_more_passes_than_the_rate_and_the_burst(steps: list[tuple[float, int]]) -> None:
    now_s = 100.0
    quota, taken, largest = Quota(lambda: now_s, Limits(receive_bytes_per_s=1024)), 0, 0
    for wait_s, size in steps:
        now_s += wait_s
        while pause_s := quota.receive_pause_s():
            assert pause_s <= PAUSE_S_MAX
            now_s += pause_s
        quota.received(size, 1)
        taken, largest = taken + size, max(largest, size)
    assert taken <= 1024 * (now_s - 100.0 + 1) + largest + 1


def test_without_limits_nothing_is_counted() -> None:
    quota = Quota(lambda: 0.0, Limits())
    quota.received(1 << 40, 1 << 40)
    quota.sent(1 << 40)
    assert (quota.is_limited, quota.receive_pause_s(), quota.send_pause_s()) == (False, 0, 0)
