"""Limits of connections, and clients that open many and say little: whoever works goes on, and new ones come in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest
import trio
from raw_client import HEAD, RawClient, Refused, broker_on, connected, served, simulated
from test_rights import EVERYTHING, Rights
from tls_world import HOST, context_of_client, inline, pair

import linn
from linn.core.broker.broker import Broker
from linn.core.broker.listening import NOTE_INTERVAL_S, WATCHERS_MAX
from linn.core.env.env import Stream
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.tree import BrokerFull, ConnectionLost
from linn.core.security.sasl.scram import SCRAM, ScramClient, make_verifier
from linn.testing.sim_env import SimEnv
from linn.testing.sim_pipe import PIPE_BYTES_MAX
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

TOPIC = '[topics.t]\nkind = "stream"\nstorage = "dram"\n'
ANN = f'[users.ann]\nroles = ["administrator"]\nscram = "{make_verifier("secret", bytes(16), 4_096).text()}"\n'
WIDE = "".join(f'[topics.t{number}]\nstorage = "dram"\n' for number in range(200))
"""The number of topics with which the metrics page does not fit into a connection of the simulation."""
WATCH = '[listeners.watch]\nprotocol = "metrics"\naddress = "127.0.0.1:9466"\n'
URL, ADDRESS, WATCH_ADDRESS = "linn://127.0.0.1:5466", "127.0.0.1:5466", "127.0.0.1:9466"
HELLO = b"".join(map(bytes, frames_of(hello("attacker"), 1)))
OUTPUT_BYTES_MAX = 64 << 10
"""Limit of the output for a client that has not logged in (Redis CVE-2025-21605)."""
PLACES = 40
T = TypeVar("T")
MANY = 300


def limited(**limits: int) -> str:
    """The table [broker] with these limits."""
    return HEAD + "".join(f"{name} = {number}\n" for name, number in limits.items())


async def refusal(env: SimEnv) -> str:
    with pytest.raises(Refused) as caught:
        await connected(env)
    assert caught.value.code == "broker.full"
    return caught.value.text


@simulated
async def test_an_address_gets_its_share_and_no_more(env: SimEnv) -> None:
    async with broker_on(env, TOPIC, limited(address_connections_max=3)):
        attacker, other = SimEnv(0, name="attacker", world=env.world), SimEnv(0, name="other", world=env.world)
        held = [await connected(attacker) for _ in range(3)]
        assert await refusal(attacker) == "attacker has 3 connections, as many as address_connections_max allows"
        await (await connected(other)).publish("t", ["a"])
        await held[0].stream.aclose()
        await trio.sleep(1)
        await connected(attacker)


@simulated
async def test_refusals_do_not_fill_the_log(env: SimEnv, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_on(env, TOPIC, limited(address_connections_max=1)) as broker:
        await connected(env)
        for _ in range(2):
            for _ in range(50):
                await refusal(env)
            await trio.sleep(NOTE_INTERVAL_S)
        assert broker.connections.traffic["native"].refused == 100
        assert 2 <= caplog.text.count("as many as address_connections_max allows") <= 4


@simulated
async def test_a_user_gets_its_share_and_no_more(env: SimEnv) -> None:
    text = 'login = "required"\n' + TOPIC + ANN
    async with broker_on(env, text, limited(user_connections_max=2)) as broker:
        login = linn.Password("ann", "secret")
        async with linn.connect(URL, login=login, env=env):
            async with linn.connect(URL, login=login, env=env):
                with pytest.raises(BrokerFull, match='"ann" has 2 connections, as many as user_connections_max'):
                    async with linn.connect(URL, login=login, env=env):
                        raise AssertionError
                await trio.sleep(2)
                assert broker.listening.connections == 2
            await trio.sleep(2)
            async with linn.connect(URL, login=login, env=env):
                pass


@served('[users.root]\nroles = ["administrator"]\n' + TOPIC, head=limited(user_connections_max=1))
async def test_a_limit_of_the_users_own_goes_before_and_anonymous_has_no_other(
    env: SimEnv, broker: Broker, client: RawClient, other: RawClient
) -> None:
    rights = Rights(broker)
    await rights.begin()
    await rights.are(EVERYTHING)
    await rights.perform("user.alter", name="anonymous", limits={"connections_max": 2})
    assert await refusal(env) == 'user "anonymous" has 2 connections, as many as limits.connections_max allows'
    await client.publish("t", ["those that are connected go on"])
    await rights.perform("user.alter", name="anonymous", limits={"connections_max": 0})
    await connected(env)


# --- silent, half-open, slow -----------------------------------------------------------------------------------------


async def silent(stream: Stream) -> None:
    pass


async def half_said(stream: Stream) -> None:
    await stream.send([HELLO[: len(HELLO) // 2]])


async def byte_by_byte(stream: Stream) -> None:
    for number in range(len(HELLO)):
        await stream.send([HELLO[number : number + 1]])
        await trio.sleep(1)


async def challenged(stream: Stream) -> None:
    await stream.send([HELLO])


async def too_large(stream: Stream) -> None:
    await stream.send(frames_of(hello("x" * (17 << 10))))


async def flood(env: SimEnv, address: str, say: Callable[[Stream], Awaitable[None]]) -> None:
    """Keep many connections open, and open each again that is closed."""
    buffer = memoryview(bytearray(1 << 10))

    async def attack() -> None:
        while True:
            with suppress(ConnectionLost):
                stream = await env.net.connect(address)
                await say(stream)
                while await stream.receive_into(buffer):
                    pass
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(MANY):
            nursery.start_soon(attack)


@pytest.mark.parametrize("say", [silent, half_said, byte_by_byte, challenged, too_large])
@simulated
async def test_a_flood_of_strangers_shuts_nobody_out(env: SimEnv, say: Callable[[Stream], Awaitable[None]]) -> None:
    async with broker_on(env, 'login = "required"\n' + TOPIC + ANN, limited(handshakes_max=PLACES)) as broker:
        attacker, login = SimEnv(0, name="attacker", world=env.world), linn.Password("ann", "secret")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, attacker, ADDRESS, say)
            await trio.sleep(3)
            async with linn.connect(URL, login=login, env=env) as worker, worker.producer("t") as producer:
                for number in range(10):
                    async with linn.connect(URL, login=login, env=env, connect_timeout_s=0.5):
                        await producer.publish(b"%d" % number)
                    assert broker.listening.connections <= PLACES + 2
            nursery.cancel_scope.cancel()


class SlowThreads:
    """Threads of a busy machine."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.sleep(1)
        return work()


def give_certificate(env: SimEnv) -> str:
    """Write a certificate to the machine's disk; the tables of a listener with it."""
    for path, content in zip(("cert.pem", "key.pem"), pair(HOST, "localhost"), strict=True):
        env.disk.open(path, create=True).write([content])
    return 'tls = "edge"\n' + TOPIC + '[tls.edge]\ncertificate = "cert.pem"\nkey = "key.pem"\n'


async def shake_hands(env: SimEnv) -> None:
    """Connect inside TLS, and say hello."""
    stream = TlsStream(await env.net.connect(ADDRESS), context_of_client(), server_name=HOST)
    await stream.handshake(inline)
    await RawClient(stream).greet()


@simulated
async def test_handshakes_that_wait_for_the_broker_are_not_ended_for_new_ones(env: SimEnv) -> None:
    """Or of many clients that come back at once none would get in."""
    text, env.threads = give_certificate(env), SlowThreads()  # type: ignore[assignment]
    async with broker_on(env, text, limited(handshakes_max=2)), trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(shake_hands, env)
        await trio.sleep(0.5)
        with pytest.raises(ConnectionLost):
            await shake_hands(env)
        await trio.sleep(10)
        await shake_hands(env)


@simulated
async def test_half_done_tls_handshakes_shut_nobody_out(env: SimEnv) -> None:
    async with broker_on(env, give_certificate(env), limited(handshakes_max=PLACES)) as broker:
        attacker = SimEnv(0, name="attacker", world=env.world)

        async def half_shaken(stream: Stream) -> None:
            await stream.send([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, attacker, ADDRESS, half_shaken)
            await trio.sleep(3)
            for _ in range(10):
                stream = TlsStream(await env.net.connect(ADDRESS), context_of_client(), server_name=HOST)
                with trio.fail_after(1):
                    await stream.handshake(inline)
                    client = RawClient(stream)
                    await client.greet()
                await client.publish("t", ["a"])
                await stream.aclose()
                assert broker.listening.connections <= PLACES + 2
            nursery.cancel_scope.cancel()


@simulated
async def test_silent_connections_of_the_same_address_make_way_too(env: SimEnv) -> None:
    """And no client does that has said hello."""
    async with broker_on(env, TOPIC, limited(handshakes_max=PLACES)):
        held = [await env.net.connect(ADDRESS) for _ in range(2 * PLACES)]
        clients = [await connected(env) for _ in range(2 * PLACES)]
        for client in clients:
            assert await client.call(m.Ping()) == m.Pong()
        for stream in held:
            await stream.aclose()


@simulated
async def test_who_makes_way_is_told(env: SimEnv) -> None:
    async with broker_on(env, TOPIC, limited(handshakes_max=1)) as broker:
        slow = RawClient(await SimEnv(0, name="slow", world=env.world).net.connect(ADDRESS))
        await trio.sleep(1)
        await connected(env)
        (failed,) = await slow.until_closed()
        assert isinstance(failed, m.Failed)
        assert (failed.code, failed.retriable) == ("broker.full", True)
        assert broker.connections.traffic["native"].failed == {"broker.full": 1}


@served('login = "required"\n' + TOPIC + ANN)
async def test_output_before_the_login_is_bounded(env: SimEnv, broker: Broker) -> None:
    """However much a client sends, and however large what it makes the broker repeat."""
    client = RawClient(await env.net.connect(ADDRESS))
    challenge: Any = await client.call(hello("x" * 16_000))
    first = ScramClient("ann", b"c" * 11_000, challenge.mechanisms).first().decode()
    for _ in range(20):
        with suppress(ConnectionLost):
            await client.send(m.Authenticate(SCRAM, first))
    with suppress(ConnectionLost):
        await client.until_closed()
    await trio.sleep(5)
    assert broker.listening.connections == 0
    assert 0 < broker.connections.traffic["native"].total().sent_bytes < OUTPUT_BYTES_MAX


# --- monitoring ------------------------------------------------------------------------------------------------------


async def state(env: SimEnv) -> bytes:
    stream = await env.net.connect(WATCH_ADDRESS)
    await stream.send([b"GET /ready HTTP/1.1\r\nHost: linn\r\nConnection: close\r\n\r\n"])
    received, buffer = b"", memoryview(bytearray(1 << 10))
    while count := await stream.receive_into(buffer):
        received += buffer[:count]
    return received


@served(TOPIC + WATCH)
async def test_silent_sockets_do_not_blind_monitoring(env: SimEnv, broker: Broker) -> None:
    attacker = SimEnv(0, name="attacker", world=env.world)
    held = [await attacker.net.connect(WATCH_ADDRESS) for _ in range(WATCHERS_MAX)]
    await trio.sleep(0.1)
    assert len(broker.connections.traffic["watch"].open) == WATCHERS_MAX
    assert b"ready" in await state(attacker), "at the same address too"
    held += [await attacker.net.connect(WATCH_ADDRESS) for _ in range(WATCHERS_MAX)]
    for _ in range(10):
        assert b"ready" in await state(env)
    for stream in held:
        await stream.aclose()


async def some(stream: Stream, size: int) -> bytes:
    """Read until there are so many bytes, or the end."""
    received, buffer = b"", memoryview(bytearray(1 << 16))
    while len(received) < size and (count := await stream.receive_into(buffer)):
        received += buffer[:count]
        if received.endswith(b"\r\n0\r\n\r\n"):
            break
    return received


@served(WIDE + WATCH)
async def test_a_scraper_that_reads_keeps_its_place(env: SimEnv, broker: Broker) -> None:
    """Silent ones lose theirs, and so does a client that asks for much and reads nothing."""
    scraper, deaf = await env.net.connect(WATCH_ADDRESS), await env.net.connect(WATCH_ADDRESS)
    for stream in (scraper, deaf):
        await stream.send([b"GET /metrics HTTP/1.1\r\nHost: linn\r\n\r\n"])
    for _ in range(3):
        assert len(await some(scraper, PIPE_BYTES_MAX // 2)) >= PIPE_BYTES_MAX // 2
        for _ in range(40):
            await env.net.connect(WATCH_ADDRESS)
        await trio.sleep(0.5)
    assert (await some(scraper, 1 << 30)).endswith(b"0\r\n\r\n")
    assert not (await some(deaf, 1 << 30)).endswith(b"0\r\n\r\n")
    traffic = broker.connections.traffic["watch"]
    assert (traffic.refused, traffic.failed) == (0, {"broker.full": 2 + 3 * 40 - WATCHERS_MAX})


# --- shown -----------------------------------------------------------------------------------------------------------


@served('[users.root]\nroles = ["administrator"]\n[users.anonymous]\nroles = ["administrator"]\n' + TOPIC)
async def test_connections_show_the_user_and_how_it_has_logged_in(env: SimEnv, client: RawClient) -> None:
    await env.net.connect(ADDRESS)
    shown = await client.administer("connection.list")
    assert [(one["user"], one["login"]) for one in shown] == [("anonymous", "none"), ("", "")]


@simulated
async def test_a_user_that_has_logged_in_is_shown(env: SimEnv) -> None:
    async with broker_on(env, 'login = "required"\n' + TOPIC + ANN):
        async with linn.connect(URL, login=linn.Password("ann", "secret"), env=env) as client:
            (shown,) = await client.admin.connections()
            assert (shown["user"], shown["login"]) == ("ann", SCRAM)
