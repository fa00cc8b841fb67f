"""The next token on the same connection: nothing is interrupted, unless it is another user's or has other roles."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from raw_client import broker_on, connected, simulated
from token_world import KEY, token, write_keys

import linn
from linn.client.login import _end_of
from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.security.sasl.tokens import bearer_message
from linn.testing.plugin_broker import plugin_broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

LIFE_S = 1.0


def lived(user: str = "ann", life_s: float = LIFE_S, **claims: object) -> str:
    return token(user, exp=RealEnv().clock.now_ms() / 1000 + life_s, **claims)


@asynccontextmanager
async def broker_with(folder: Path) -> AsyncIterator[tuple[Broker, str]]:
    write_keys(folder / "keys.json", KEY)
    text = f"""
[broker]
data_dir = "{folder}/data"
default_storage = "dram"
[listeners.native]
address = "unix:{folder}/linn.sock"
login = "required"
methods = ["peer", "token"]
[tokens]
keys = "{folder}/keys.json"
issuer = "https://id.example"
audience = "linn"
roles_claim = "roles"
[roles.worker]
"topic:jobs" = ["publish", "consume"]
"broker" = ["see", "admin"]
[users.ann]
roles = ["worker"]
[users.bob]
roles = ["worker"]
[topics.jobs]
"""
    async with plugin_broker(RealEnv(), text) as broker:
        yield broker, f"linn+unix://{folder}/linn.sock"


class Source:
    """Gives one token after the other, and tells when so many were asked for."""

    def __init__(self, tokens: Callable[[], Iterator[str]]) -> None:
        self._tokens = tokens()
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return next(self._tokens)

    async def reach(self, count: int) -> None:
        with trio.fail_after(60):
            while self.count < count:
                await trio.lowlevel.checkpoint()


async def test_work_on_a_message_outlives_tokens(tmp_path: Path) -> None:
    def tokens() -> Iterator[str]:
        while True:
            yield lived()

    source = Source(tokens)
    async with broker_with(tmp_path) as (broker, url), linn.connect(url, login=linn.Token(source)) as client:
        async with client.producer("jobs") as producer:
            await producer.publish(b"a long job")
            async with client.consumer("jobs") as consumer:
                message = await anext(consumer)
                (before,) = await client.admin.connections()
                began_s = trio.current_time()
                await source.reach(6)
                assert trio.current_time() - began_s > 2 * LIFE_S
                await message.ack()
                await producer.publish(b"another")
                assert (await anext(consumer)).value == b"another", "the first one did not come again"
            (after,) = await client.admin.connections()
            assert after["number"] == before["number"]
        assert broker.client_count == 1


@pytest.mark.parametrize(
    ("next_token", "user", "roles"),
    [
        (lambda: lived("bob", 3_600), "bob", ["worker"]),
        (lambda: lived("ann", 3_600, roles=["worker", "reader"]), "ann", ["worker"]),
        (lambda: lived("ann", 3_600, iss="https://other.example"), "ann", ["worker"]),
    ],
    ids=["another user", "other roles", "not valid"],
)
async def test_any_other_login_ends_the_connection_and_the_client_connects_again(
    tmp_path: Path, next_token: Callable[[], str], user: str, roles: list[str]
) -> None:
    def tokens() -> Iterator[str]:
        yield lived()
        yield next_token()
        while True:
            yield lived(user, 3_600)

    source = Source(tokens)
    async with broker_with(tmp_path) as (_, url), linn.connect(url, login=linn.Token(source)) as client:
        (before,) = await client.admin.connections()
        await source.reach(3)
        said = await client.admin.whoami()
        assert (said["user"], said["roles"]) == (user, roles)
        (after,) = [row for row in await client.admin.connections() if row["number"] != before["number"]]
        assert after["number"] > before["number"]


async def test_a_function_that_fails_is_called_again(tmp_path: Path) -> None:
    def tokens() -> Iterator[str]:
        yield lived(life_s=8.0)
        yield "\u00fc"
        while True:
            yield lived(life_s=3_600)

    source = Source(tokens)
    async with broker_with(tmp_path) as (_, url), linn.connect(url, login=linn.Token(source)) as client:
        (before,) = await client.admin.connections()
        await source.reach(3)
        await client.admin.whoami()
        assert [row["number"] for row in await client.admin.connections()] == [before["number"]]


@simulated
async def test_a_login_where_there_is_none_is_refused(env: SimEnv) -> None:
    async with broker_on(env, "[topics.q]\n"):
        client = await connected(env)
        request = await client.send(m.Authenticate("OAUTHBEARER", bearer_message("x.y.z").decode()))
        assert await client.code_of(request) == "protocol.malformed"
        await client.call(m.Ping())


@pytest.mark.parametrize(
    ("text", "ends_s"),
    [
        (token("ann", exp=1_234.5), 1_234.5),
        (token("ann", exp=1_234), 1_234.0),
        ("opaque", math.inf),
        ("a.b.c", math.inf),
        ("a.bnVsbA.c", math.inf),
        ("a.e30.c", math.inf),
        (token("ann", ends="x").replace(".", ":"), math.inf),
    ],
)
def test_the_end_of_a_token_is_read_if_it_has_one(text: str, ends_s: float) -> None:
    assert _end_of(bearer_message(text)) == ends_s
