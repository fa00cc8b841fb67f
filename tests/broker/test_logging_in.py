"""Logins over the native protocol: nothing is served before them, and whoever does not log in costs little."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from raw_client import RawClient, broker_on, served

import linn
from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.errors.auth import AuthFailed
from linn.core.errors.tree import ConnectionLost
from linn.core.security.logins import REFUSED
from linn.core.security.sasl.scram import SCRAM, ScramClient, make_verifier, salt_password
from linn.core.security.users import User
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

SALT = b"salt of 16 bytes"
SCRAM_TEXT = make_verifier("opensesame", SALT, 4_096).text()
SALTED = salt_password("opensesame", SALT, 4_096)
REQUIRED = 'login = "required"\n'
TEXT = REQUIRED + '[topics.t]\nkind = "stream"\n'
ADDRESS = "127.0.0.1:5466"


def add_users(broker: Broker) -> None:
    broker.policy.users.put(User(name="ann", scram=SCRAM_TEXT, roles=("administrator",)))


async def stranger(env: SimEnv) -> RawClient:
    """A client that has not said anything."""
    return RawClient(await env.net.connect(ADDRESS))


async def challenged(env: SimEnv) -> tuple[RawClient, ScramClient]:
    """A client that has said hello, and been asked to log in."""
    client = await stranger(env)
    answer = await client.call(hello("raw"))
    assert answer == m.Challenge([SCRAM], "")
    return client, ScramClient("ann", b"c" * 18, answer.mechanisms)


@served(TEXT)
async def test_a_client_is_welcome_after_its_login(env: SimEnv, broker: Broker) -> None:
    add_users(broker)
    client, scram = await challenged(env)
    challenge = await client.call(m.Authenticate(SCRAM, scram.first().decode()))
    scram.salting(challenge.data.encode())
    welcome = await client.call(m.Authenticate(SCRAM, scram.final(SALTED).decode()))
    assert isinstance(welcome, m.Welcome)
    assert (welcome.user, welcome.producer_id > 0) == ("ann", True)
    scram.check(welcome.login.encode())
    await client.publish("t", ["a"])


@served('[topics.t]\nkind = "stream"\n')
async def test_without_a_required_login_a_client_is_anonymous(env: SimEnv, broker: Broker, client: RawClient) -> None:
    assert (await (await stranger(env)).greet()).user == "anonymous"


@served(TEXT)
async def test_a_wrong_password_ends_the_connection(env: SimEnv, broker: Broker) -> None:
    add_users(broker)
    client, scram = await challenged(env)
    scram.salting((await client.call(m.Authenticate(SCRAM, scram.first().decode()))).data.encode())
    await client.send(m.Authenticate(SCRAM, scram.final(bytes(32)).decode()))
    assert await client.until_closed() == [m.Failed("auth.failed", REFUSED)]
    await trio.sleep(1)
    assert broker.listening.connections == 0


@pytest.mark.parametrize(
    "message",
    [
        m.Publish("t"),
        m.Describe(),
        m.Administer("topic.delete", "{}"),
        m.Fetch("t", 0, 0),
        m.Ping(),
        m.Goodbye(),
        m.Hello(1, 1, [], "again"),
        m.Unknown(),
    ],
    ids=lambda message: type(message).__name__,
)
@served(TEXT)
async def test_nothing_else_is_read_before_the_login(env: SimEnv, broker: Broker, message: m.Message) -> None:
    add_users(broker)
    if isinstance(message, m.Unknown):
        message = m.Subscribe("t")
    for has_begun in (False, True):
        client, scram = await challenged(env)
        if has_begun:
            await client.call(m.Authenticate(SCRAM, scram.first().decode()))
        await client.send(message)
        (failed,) = await client.until_closed()
        assert isinstance(failed, m.Failed)
        assert failed.code == "protocol.malformed"
        assert "before the login" in failed.text


@served(TEXT)
async def test_requests_behind_the_hello_are_not_carried_out(env: SimEnv, broker: Broker) -> None:
    """All in one packet: what comes before the login is refused, even if it came before it was asked for."""
    client = await stranger(env)
    await client.stream.send([*frames_of(hello("raw"), 1), *frames_of(m.Administer("topic.delete", '{"name":"t"}'), 2)])
    heard = await client.until_closed()
    assert [type(message) for message in heard] in ([m.Failed, m.Challenge], [m.Challenge, m.Failed])
    assert "t" in broker.topics


@served(TEXT)
async def test_a_login_may_be_sent_at_once(env: SimEnv, broker: Broker) -> None:
    """A client that knows what is offered need not wait for it; what follows is carried out after the welcome."""
    add_users(broker)
    client, scram = await stranger(env), ScramClient("ann", b"c" * 18, [SCRAM])
    await client.stream.send(
        [*frames_of(hello("raw"), 1), *frames_of(m.Authenticate(SCRAM, scram.first().decode()), 2)]
    )
    assert (await client.answer(1)).message == m.Challenge([SCRAM], "")
    challenge: Any = (await client.answer(2)).message
    scram.salting(challenge.data.encode())
    final, ping = m.Authenticate(SCRAM, scram.final(SALTED).decode()), m.Ping()
    await client.stream.send([*frames_of(final, 3), *frames_of(ping, 4)])
    welcome: Any = (await client.answer(3)).message
    assert welcome.user == "ann"
    assert (await client.answer(4)).message == m.Pong()


@served(TEXT)
async def test_messages_before_the_login_are_small(env: SimEnv, broker: Broker) -> None:
    add_users(broker)
    client, _ = await challenged(env)
    await client.send(m.Authenticate(SCRAM, "x" * (16 << 10)))
    (failed,) = await client.until_closed()
    assert isinstance(failed, m.Failed)
    assert failed.code == "protocol.frame_too_large"


@served(TEXT)
async def test_a_silent_client_is_closed_in_time(env: SimEnv, broker: Broker) -> None:
    """The time is for all messages together: a byte now and then does not extend it."""
    add_users(broker)
    client, scram = await challenged(env)
    (frame,) = frames_of(m.Authenticate(SCRAM, scram.first().decode()), 1)
    began_s = trio.current_time()
    with trio.move_on_after(60), suppress(ConnectionLost):
        for byte in bytes(frame):
            await client.stream.send([bytes([byte])])
            await trio.sleep(1)
    assert trio.current_time() - began_s < 15
    assert broker.listening.connections == 0


@served(TEXT)
async def test_a_replayed_login_is_refused(env: SimEnv, broker: Broker) -> None:
    add_users(broker)
    client, scram = await challenged(env)
    first = scram.first()
    scram.salting((await client.call(m.Authenticate(SCRAM, first.decode()))).data.encode())
    final = scram.final(SALTED)
    assert (await client.call(m.Authenticate(SCRAM, final.decode()))).user == "ann"
    other, _ = await challenged(env)
    await other.call(m.Authenticate(SCRAM, first.decode()))
    await other.send(m.Authenticate(SCRAM, final.decode()))
    assert m.Failed("auth.failed", REFUSED) in await other.until_closed()


@served(TEXT)
async def test_clients_log_in(env: SimEnv, broker: Broker) -> None:
    add_users(broker)
    login = linn.Password("ann", "opensesame")
    async with linn.connect(f"linn://{ADDRESS}", login=login, env=env) as client:
        assert client.user == "ann"
    with pytest.raises(AuthFailed, match=REFUSED):
        async with linn.connect(f"linn://{ADDRESS}", login=linn.Password("ann", "wrong"), env=env):
            raise AssertionError
    with pytest.raises(AuthFailed, match="requires a login: login="):
        async with linn.connect(f"linn://{ADDRESS}", env=env):
            raise AssertionError
    with pytest.raises(AuthFailed, match="takes no tokens on this connection; it takes SCRAM-SHA-256"):
        async with linn.connect(f"linn://{ADDRESS}", login=linn.Token("x"), env=env):
            raise AssertionError


@pytest.mark.parametrize(
    "login", [linn.Token("secret"), linn.Password("ann", "secret", plain=True)], ids=["token", "plain password"]
)
async def test_a_client_sends_no_secret_where_others_can_read_it(login: linn.Token | linn.Password) -> None:
    """Whoever answers in the broker's place could offer to take it."""
    received: list[bytes | bytearray] = []
    offer = b"".join(frames_of(m.Challenge(["OAUTHBEARER", "PLAIN"], ""), 1))

    async def answer(stream: trio.SocketStream) -> None:
        received.append(await stream.receive_some())
        await stream.send_all(offer)
        async for part in stream:
            received.append(part)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        port = listener.socket.getsockname()[1]
        with pytest.raises(AuthFailed, match=r"only in TLS|on this connection"):
            async with linn.connect(f"linn://127.0.0.1:{port}", login=login):
                raise AssertionError
        nursery.cancel_scope.cancel()
    assert received
    assert b"secret" not in b"".join(received)


async def test_over_a_unix_socket_the_brokers_own_user_is_administrator(tmp_path: object) -> None:
    path = f"{tmp_path}/linn.sock"
    text = f'{REQUIRED}[listeners.local]\naddress = "unix:{path}"\nlogin = "required"\n'
    head = f'[broker]\ndata_dir = "{tmp_path}/data"\ndefault_storage = "dram"\n'
    async with broker_on(RealEnv(), text.replace(REQUIRED, "", 1), head) as broker:
        async with linn.connect(f"linn+unix://{path}") as client:
            assert client.user == "administrator"
        assert broker.logins.own_uid is not None
        broker.logins.own_uid += 1
        with pytest.raises(AuthFailed):
            async with linn.connect(f"linn+unix://{path}"):
                raise AssertionError
        broker.policy.users.put(User(name="ann", uid=broker.logins.own_uid - 1))
        async with linn.connect(f"linn+unix://{path}") as client:
            assert client.user == "ann"
