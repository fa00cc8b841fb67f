"""Logins that end while a connection lasts, and logins that wait: what the client is told, and when."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from raw_client import RawClient, broker_on, records, served, simulated

import linn
from linn.client.options import ClientOptions
from linn.core.broker.broker import Broker
from linn.core.errors.auth import AuthFailed
from linn.core.ports.principal import Principal
from linn.core.security.logins import FAILURES_FREE, WAIT_MAX_S
from linn.core.security.sasl.scram import SCRAM, ScramClient, make_verifier, salt_password
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import hello

URL, ADDRESS = "linn://127.0.0.1:5466", "127.0.0.1:5466"
SALT = bytes(16)
SALTED = salt_password("secret", SALT, 4_096)
VERIFIER, OTHER = (make_verifier(password, SALT, 4_096).text() for password in ("secret", "other"))
TEXT = """
login = "required"
[users.root]
roles = ["administrator"]
[topics.q]
lease = "1h"
[topics.s]
kind = "stream"
[topics.full]
bytes_max = "10KiB"
message_bytes_max = "10KiB"
overflow = "block"
"""


async def perform(broker: Broker, verb: str, **arguments: Any) -> Any:
    return json.loads(await broker.gateway.session(Principal("test", name="root")).perform(verb, json.dumps(arguments)))


@asynccontextmanager
async def broker_with_ann(env: SimEnv) -> AsyncIterator[Broker]:
    async with broker_on(env, TEXT) as broker:
        await perform(broker, "user.create", name="ann", roles=["administrator"], scram=VERIFIER)
        yield broker


async def asked_for_proof(env: SimEnv) -> tuple[RawClient, str]:
    """A client of ann's before the last message of its login, and that message."""
    client = RawClient(await env.net.connect(ADDRESS))
    scram = ScramClient("ann", b"c" * 18, (await client.call(hello("raw"))).mechanisms)
    scram.salting((await client.call(m.Authenticate(SCRAM, scram.first().decode()))).data.encode())
    return client, scram.final(SALTED).decode()


async def logged_in(env: SimEnv) -> RawClient:
    client, proof = await asked_for_proof(env)
    assert (await client.call(m.Authenticate(SCRAM, proof))).user == "ann"
    return client


ENDS = [
    ("user.delete", {}, 'the user "ann" was deleted'),
    ("user.alter", {"scram": OTHER}, 'the user "ann" has another password'),
]


@pytest.mark.parametrize(("verb", "change", "why"), ENDS)
@simulated
async def test_the_users_connections_end_with_the_reason(
    env: SimEnv, verb: str, change: dict[str, str], why: str
) -> None:
    """Also one that waits for records, and one with a publish that waits for room."""
    async with broker_with_ann(env) as broker:
        idle, waiting, blocked = [await logged_in(env) for _ in range(3)]
        await waiting.call(m.Subscribe("q", credit=1))
        await waiting.send(m.Fetch("s", 0, 0, wait_max_ms=60_000))
        await blocked.publish("full", ["a" * 8_000])
        await blocked.send(m.Publish("full"), [records(["b" * 8_000])])
        began_s = env.clock.monotonic()
        await perform(broker, verb, name="ann", **change)
        for client in (idle, waiting, blocked):
            heard = await client.until_closed()
            assert m.Failed("auth.failed", why) in heard
        assert env.clock.monotonic() - began_s < 1
        assert broker.listening.connections == 0


@simulated
async def test_others_and_other_changes_end_nothing(env: SimEnv) -> None:
    async with broker_with_ann(env) as broker:
        ann = await logged_in(env)
        for name, change in (("ann", {"limits": {"requests_per_s": 1_000}}), ("ann", {"certificate": "ann.example"})):
            await perform(broker, "user.alter", name=name, **change)
        await perform(broker, "user.alter", name="ann", scram=OTHER, validate_only=True)
        await perform(broker, "user.create", name="bob", scram=VERIFIER)
        await perform(broker, "user.alter", name="bob", scram=OTHER)
        await perform(broker, "user.delete", name="bob")
        await trio.sleep(2)
        await ann.publish("q", ["a"])


@served('[users.root]\nroles = ["administrator"]\n[topics.q]\n')
async def test_clients_without_a_login_stay_when_anonymous_is_deleted(broker: Broker, client: RawClient) -> None:
    await perform(broker, "user.create", name="anonymous")
    await perform(broker, "user.delete", name="anonymous")
    await trio.sleep(2)
    assert await client.call(m.Ping()) == m.Pong()


@pytest.mark.parametrize("verb", ["user.delete", "user.alter"])
@simulated
async def test_who_changes_itself_is_answered_first(env: SimEnv, verb: str) -> None:
    async with broker_with_ann(env):
        ann = await logged_in(env)
        change = {"scram": OTHER} if verb == "user.alter" else {}
        answer = await ann.call(m.Administer(verb, json.dumps({"name": "ann", **change})))
        assert isinstance(answer, m.Administered)
        assert any(isinstance(said, m.Failed) and said.code == "auth.failed" for said in await ann.until_closed())


@pytest.mark.parametrize(("verb", "change", "why"), ENDS)
@simulated
async def test_a_login_that_is_overtaken_by_the_change_fails(
    env: SimEnv, verb: str, change: dict[str, str], why: str
) -> None:
    async with broker_with_ann(env) as broker:
        client, proof = await asked_for_proof(env)
        await perform(broker, verb, name="ann", **change)
        await client.send(m.Authenticate(SCRAM, proof))
        (failed,) = await client.until_closed()
        assert isinstance(failed, m.Failed)
        assert failed.code == "auth.failed"


@simulated
async def test_a_client_of_an_ended_login_gives_up_with_the_reason(env: SimEnv) -> None:
    async with broker_with_ann(env) as broker:
        async with linn.connect(URL, login=linn.Password("ann", "secret"), env=env) as client:
            await perform(broker, "user.alter", name="ann", scram=OTHER)
            await trio.sleep(2)
            with pytest.raises(AuthFailed):
                await client.describe()


@simulated
async def test_a_login_that_fails_again_and_again_never_looks_like_a_timeout(env: SimEnv) -> None:
    """Answers wait, and for less time than a client does."""
    assert ClientOptions().connect_timeout_s - 1 > WAIT_MAX_S
    async with broker_with_ann(env):
        took_s = []
        for _ in range(FAILURES_FREE + 4):
            began_s = env.clock.monotonic()
            with pytest.raises(AuthFailed):
                async with linn.connect(URL, login=linn.Password("ann", "wrong"), env=env):
                    raise AssertionError
            took_s.append(env.clock.monotonic() - began_s)
        assert took_s[-1] >= WAIT_MAX_S > took_s[0]
