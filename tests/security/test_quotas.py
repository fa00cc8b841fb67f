"""Quotas: rates over all connections of a user, kept by reading and delivering later; others are not held up."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_client import ADDRESS, RawClient, Refused, connected, records, served
from test_rights import EVERYTHING, Rights

import linn
from linn.core.broker.broker import Broker
from linn.core.security.quota import PAUSE_S_MAX, Limits, Quota
from linn.core.security.sasl.scram import make_verifier
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
async def test_clients_of_one_name_share_the_rate_of_a_client(broker: Broker, env: SimEnv) -> None:
    """Two of one name have together what one of another name has alone."""
    await _limit(broker, client_receive_bytes_per_s=RATE)
    clients = [await connected(env, name=name) for name in ("billing", "billing", "shop")]
    until_s, confirmed = trio.current_time() + SECONDS, [0, 0, 0]

    async def publish(number: int) -> None:
        confirmed[number] = await _at_full_rate(clients[number], until_s, 1_000)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(publish, number)
    for bytes_of_name in (confirmed[0] + confirmed[1], confirmed[2]):
        assert 0.6 * RATE * SECONDS < bytes_of_name < 1.1 * RATE * (SECONDS + 1)


@served(FILE)
async def test_the_rate_of_the_user_holds_whatever_names_its_clients_take(broker: Broker, env: SimEnv) -> None:
    await _limit(broker, receive_bytes_per_s=RATE, client_receive_bytes_per_s=RATE)
    clients = [await connected(env, name=f"name {number}") for number in range(3)]
    until_s, confirmed = trio.current_time() + SECONDS, list[int]()

    async def publish(client: RawClient) -> None:
        confirmed.append(await _at_full_rate(client, until_s, 1_000))

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(publish, client)
    assert sum(confirmed) < 1.1 * RATE * (SECONDS + 1)


LOGIN = 'login = "required"\n' + FILE
VERIFIER = make_verifier("secret", bytes(16), 4_096).text()
STEADY_S = 0.05
"""Time between two messages of a user that has not been promised more."""


async def _users(broker: Broker, **limits: int) -> Rights:
    """The users `greedy`, who has limits, and `steady`, who has none."""
    rights = Rights(broker)
    for name in ("greedy", "steady"):
        await rights.perform("user.create", name=name, roles=["administrator"], scram=VERIFIER)
    await rights.perform("user.alter", name="greedy", limits=limits)
    return rights


def _as(user: str, env: SimEnv) -> AbstractAsyncContextManager[linn.Client]:
    return linn.connect(f"linn://{ADDRESS}", login=linn.Password(user, "secret"), env=env)


@served(LOGIN)
async def test_a_user_who_publishes_at_full_rate_does_not_slow_another_one(broker: Broker, env: SimEnv) -> None:
    """The one is held to its quota; each message of the other is confirmed as fast as on an idle broker."""
    await _users(broker, receive_bytes_per_s=RATE)
    confirmed, longest_s = 0, 0.0

    async def publish() -> None:
        nonlocal confirmed
        async with _as("greedy", env) as client, client.producer("q") as producer:
            while True:
                await producer.publish_many([b"x" * 1_000] * 10)
                confirmed += 10_000

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        async with _as("steady", env) as client, client.producer("s") as producer:
            for _ in range(int(SECONDS / STEADY_S)):
                began_s = trio.current_time()
                await producer.publish(b"y" * 1_000)
                longest_s = max(longest_s, trio.current_time() - began_s)
                await trio.sleep(STEADY_S)
        nursery.cancel_scope.cancel()
    assert longest_s < 0.1
    assert 0.6 * RATE * SECONDS < confirmed < 1.2 * RATE * (SECONDS + 1)


@served(LOGIN)
async def test_a_user_who_reads_at_full_rate_does_not_slow_another_one(broker: Broker, env: SimEnv) -> None:
    """The one reads what there is, as fast as its quota lets it; the other one hears of each message at once."""
    await _users(broker, send_bytes_per_s=RATE)
    received, longest_s = 0, 0.0

    async def read() -> None:
        nonlocal received
        async with _as("greedy", env) as client, client.consumer("s", start="earliest") as consumer:
            async for message in consumer:
                received += len(message.value or b"")

    async with _as("steady", env) as client, client.producer("s") as producer:
        for _ in range(50):
            await producer.publish_many([b"x" * 1_000] * 100)
        async with client.consumer("s", start="latest") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(int(SECONDS / STEADY_S)):
                began_s = trio.current_time()
                await producer.publish(b"y")
                assert (await anext(consumer)).value == b"y"
                longest_s = max(longest_s, trio.current_time() - began_s)
                await trio.sleep(STEADY_S)
            nursery.cancel_scope.cancel()
    assert longest_s < 0.1
    assert 0.6 * RATE * SECONDS < received < 1.1 * RATE * (SECONDS + 1) + 1_000_000  # One delivery may overdraw it.


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
