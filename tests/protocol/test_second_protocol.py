"""A protocol that imports `linn.api` alone does all that a client needs, as a named principal."""

from __future__ import annotations

import ast
import inspect
import json
import logging
from pathlib import Path
from typing import Any

import json_lines
import pytest
from simulated_time import simulated

from linn.api import AuthorizerKind, Decision, Principal, Stream, hookimpl
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.session import Session
from linn.core.security.sasl.scram import ScramClient, make_verifier, salt_password
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import plugin_broker
from linn.testing.sim_env import SimEnv

ADDRESS = "127.0.0.1:7000"
VERIFIER = make_verifier("opensesame", b"salt of 16 bytes", 4_096).text()
USERS = f"""
[listeners.json]
protocol = "json-lines"
address = "{ADDRESS}"
login = "required"
[users.alice]
scram = "{VERIFIER}"
roles = ["clerk"]
[roles.clerk]
"topic:jobs" = ["publish", "consume"]
"topic:results" = ["publish"]
"transaction:billing-1" = ["use", "configure"]
[topics.jobs]
[topics.results]
kind = "stream"
"""
TOML = f"""
[listeners.json]
protocol = "json-lines"
address = "{ADDRESS}"
[topics.jobs]
[topics.log]
kind = "stream"
[topics.results]
kind = "stream"
"""
SOURCE = Path(json_lines.__file__)
RESOURCES = {
    "addresses",
    "blamed",
    "connections",
    "env",
    "login",
    "logins",
    "long_work",
    "memory",
    "name",
    "nodes",
    "session",
    "settings",
    "spawn",
    "state",
    "turns",
}
"""Names that a protocol may use before its client has said who it is. None of them reaches a topic."""


class Peer:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def ask(self, do: str, **asked: Any) -> Any:
        await self._stream.send([json.dumps({"do": do, **asked}).encode() + b"\n"])
        buffer = memoryview(bytearray(1 << 16))
        while b"\n" not in self._received:
            count = await self._stream.receive_into(buffer)
            assert count, "the broker ended the connection"
            self._received += buffer[:count]
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    async def leave(self) -> None:
        await self._stream.aclose()


async def logged_in(env: SimEnv, user: str, password: str = "opensesame") -> tuple[Peer, Any]:
    """Log in by SCRAM; returns the client, and the broker's last answer."""
    peer = Peer(await env.net.connect(ADDRESS))
    asked = await peer.ask("hello", name="billing")
    client = ScramClient(user, b"c" * 18, asked["mechanisms"], b"")
    first = await peer.ask("log in", mechanism=client.mechanism, data=client.first().decode())
    salted = salt_password(password, *client.salting(first["data"].encode()))
    last = await peer.ask("log in", mechanism=client.mechanism, data=client.final(salted).decode())
    if "error" not in last:
        client.check(last["data"].encode())
    return peer, last


async def greeted(env: SimEnv, name: str = "billing") -> Peer:
    peer = Peer(await env.net.connect(ADDRESS))
    assert await peer.ask("hello", name=name) == {"broker": "linn"}
    return peer


@simulated
async def test_it_publishes_and_consumes_with_acks(env: SimEnv) -> None:
    async with plugin_broker(env, TOML, "json_lines"):
        peer = await greeted(env)
        assert await peer.ask("publish", topic="jobs", values=["a", "b"]) == {"offset": 0}
        assert await peer.ask("subscribe", topic="jobs") == {"id": 1}
        taken = await peer.ask("take", id=1)
        assert taken["values"] == ["a", "b"]
        assert await peer.ask("ack", id=1, delivery=taken["delivery"], first=0, end=1) == {"commits": False}
        refused = await peer.ask("ack", id=1, delivery=taken["delivery"], first=0, end=1)
        assert refused["error"] == "delivery.not_current"
        await peer.leave()
        other = await greeted(env)
        await other.ask("subscribe", topic="jobs")
        assert (await other.ask("take", id=1))["values"] == ["b"], "what was acked is gone, what was leased is back"


@simulated
async def test_it_joins_a_group_and_commits_there(env: SimEnv) -> None:
    async with plugin_broker(env, TOML, "json_lines"):
        peer = await greeted(env)
        await peer.ask("publish", topic="log", values=["a"])
        await peer.ask("subscribe", topic="log", group="g")
        taken = await peer.ask("take", id=1)
        acked = await peer.ask("ack", id=1, delivery=taken["delivery"], first=0, end=1)
        assert acked == {"commits": True}
        await peer.leave()
        other = await greeted(env)
        await other.ask("publish", topic="log", values=["b"])
        await other.ask("subscribe", topic="log", group="g")
        assert (await other.ask("take", id=1))["values"] == ["b"]


@simulated
async def test_it_takes_from_a_queue_and_publishes_in_one_transaction(env: SimEnv) -> None:
    async with plugin_broker(env, TOML, "json_lines"):
        peer = await greeted(env)
        await peer.ask("publish", topic="jobs", values=["a"])
        await peer.ask("subscribe", topic="jobs")
        taken = await peer.ask("take", id=1)
        await peer.ask("begin", name="billing-1")
        await peer.ask("publish", topic="results", values=["A"], tx=True)
        acked = await peer.ask("ack", id=1, delivery=taken["delivery"], first=0, end=1, tx=True)
        assert acked == {}
        assert (await peer.ask("fetch", topic="results", offset=0))["values"] == []
        assert await peer.ask("commit") == {}
        assert (await peer.ask("fetch", topic="results", offset=0, wait_s=5))["values"] == ["A"]
        assert (await peer.ask("take", id=1))["values"] == []


@simulated
async def test_it_logs_in_and_has_the_users_rights(env: SimEnv) -> None:
    async with plugin_broker(env, USERS, "json_lines") as broker:
        peer, last = await logged_in(env, "alice")
        assert last["broker"] == "linn"
        said = (await peer.ask("administer", verb="user.whoami", arguments={}))["result"]
        assert (said["user"], said["login"], said["roles"]) == ("alice", "SCRAM-SHA-256", ["clerk"])
        assert await peer.ask("publish", topic="jobs", values=["a"]) == {"offset": 0}
        assert await peer.ask("subscribe", topic="jobs") == {"id": 1}
        for denied in ({"do": "publish", "topic": "none", "values": ["a"]}, {"do": "subscribe", "topic": "results"}):
            assert (await peer.ask(**denied))["error"] == "auth.forbidden"
        assert (await peer.ask("fetch", topic="results", offset=0))["error"] == "auth.forbidden"
        assert (await peer.ask("begin", name="billing-2"))["error"] == "auth.forbidden"
        assert (await peer.ask("administer", verb="user.list", arguments={}))["error"] == "auth.forbidden"
        root = broker.gateway.session(Principal("test", name="administrator"))
        await root.perform("user.create", json.dumps({"name": "bob"}))
        assert (await logged_in(env, "bob"))[1]["error"] == "auth.failed"


@simulated
async def test_it_does_nothing_for_a_client_without_a_login(env: SimEnv) -> None:
    async with plugin_broker(env, USERS, "json_lines") as broker:
        assert (await logged_in(env, "alice", "wrong"))[1] == {"error": "auth.failed", "text": "the login failed"}
        peer = Peer(await env.net.connect(ADDRESS))
        assert await peer.ask("hello", name="alice") == {"mechanisms": ["SCRAM-SHA-256"], "data": ""}
        assert (await peer.ask("publish", topic="jobs", values=["a"]))["error"] == "auth.failed"
        assert broker.topics["jobs"].partitions[0].high_watermark == 0


@simulated
async def test_an_authorizer_decides_for_it_as_well(env: SimEnv) -> None:
    toml = TOML + '[broker]\nauthorizer = "topics-of-l"\n'
    async with plugin_broker(env, toml, "json_lines", __name__):
        peer = await greeted(env)
        assert await peer.ask("publish", topic="log", values=["a"]) == {"offset": 0}
        assert await peer.ask("fetch", topic="log", offset=0) == {"values": ["a"], "next": 1}
        assert await peer.ask("subscribe", topic="log") == {"id": 1}
        assert (await peer.ask("subscribe", topic="jobs"))["error"] == "auth.forbidden"
        assert (await peer.ask("publish", topic="jobs", values=["a"]))["error"] == "auth.forbidden"


class TopicsOfL:
    """An authorizer."""

    async def may(self, user: str, operation: str, kind: str, name: str) -> Decision:
        return Decision(user == "anonymous" and kind == "topic" and name.startswith("l"), 5.0)


@hookimpl
def linn_register_authorizer() -> AuthorizerKind:
    return AuthorizerKind("topics-of-l", None, lambda settings, env: TopicsOfL())


def test_the_log_names_its_principal(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, USERS, "json_lines"):
            peer, _ = await logged_in(env, "alice")
            await peer.ask("begin", name="billing-1")
            await peer.ask("publish", topic="results", values=["A"], tx=True)
            aborted = await peer.ask("administer", verb="transaction.abort", arguments={"name": "billing-1"})
            assert "error" not in aborted, aborted

    with caplog.at_level(logging.INFO):
        run_simulation(0, scenario)
    assert any("an operator, alice" in record.getMessage() for record in caplog.records)


def test_it_imports_the_api_alone_and_is_short() -> None:
    source = SOURCE.read_text(encoding="utf-8")
    modules = [node.module or "" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    assert [module for module in modules if module.startswith("linn")] == ["linn.api"]
    assert len(source.splitlines()) <= 250


def test_nothing_is_done_through_the_gateway_without_a_principal() -> None:
    """A session can't be made without one, and no other way leads from the gateway to what it does."""
    public = {name for name in vars(Gateway) if not name.startswith("_")}
    signature = inspect.signature(Gateway.__init__)
    assert (
        public
        | {name for name in signature.parameters if name not in ("self", "rooms")}
        - {
            "read_state",
            "read_addresses",
        }
        <= RESOURCES
    )
    for makes in (Gateway.session, Session.__init__):
        assert inspect.signature(makes).parameters["principal"].default is inspect.Parameter.empty
