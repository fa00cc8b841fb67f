"""The rights of each request and each verb, through the wire: with all of them, without each of them, and with none.

A row names what a request needs. Its caller first lacks everything, then has all rights on other resources only, then
all but one of the needed rights: each time the answer is `auth.forbidden`, whether or not the resource exists. With
exactly the needed rights, and as an administrator, it is anything else.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from raw_client import RawClient, Refused, broker_on, connected, records, simulated

from linn.core.broker.broker import Broker
from linn.core.gateway.inbox import SessionInbox
from linn.core.gateway.session import Session
from linn.core.gateway.session_transactions import SessionTransactions
from linn.core.ports.principal import Principal
from linn.protocols.capnp.conversation import _HANDLERS
from linn.rights import OPERATIONS, Need
from linn.testing.sim_env import SimEnv
from linn.verbs import VERBS
from linn.wire import messages as m

FILE = """
[users.root]
roles = ["administrator"]

[topics.q]
status = "1h"
[topics.s]
kind = "stream"
[topics.both]
kind = "both"
[topics.dead]
[exchanges.x]
[exchanges.y]
[exchanges.empty]
"""
EVERYTHING = {f"{kind}:*" if kind != "broker" else kind: list(OPERATIONS[kind]) for kind in OPERATIONS}
ELSEWHERE = {f"{kind}:else*": list(OPERATIONS[kind]) for kind in OPERATIONS if kind != "broker"}
Act = Callable[[RawClient], Awaitable[object]]


class Row(NamedTuple):
    """A request, and all rights that it needs."""

    name: str
    needs: list[str]
    act: Act


def _call(message: m.Message, *values: str, **properties: Any) -> Act:
    return lambda client: client.call(message, [records(values, **properties)] if values else None)


def _verb(verb: str, **arguments: Any) -> Act:
    return lambda client: client.administer(verb, **arguments)


async def _committed(client: RawClient) -> None:
    opened = await client.call(m.OpenTransactions("tx", 10_000))
    await client.call(m.EndTransaction(*[getattr(opened, name) for name in ("producer_id", "epoch", "number")], True))


REQUESTS = [
    Row("Publish", ["publish topic:q"], _call(m.Publish("q"), "a")),
    Row("Publish", ["publish exchange:x"], _call(m.Publish("x", to_exchange=True), "a", routing_key="k")),
    Row("Publish", ["publish topic:q"], _call(m.Publish("", to_exchange=True), "a", routing_key="q")),
    Row("Publish", ["publish topic:none"], _call(m.Publish("none"), "a")),
    Row("Publish", ["publish topic:none"], _call(m.Publish("", to_exchange=True), "a", routing_key="none")),
    Row("Publish", ["publish exchange:none"], _call(m.Publish("none", to_exchange=True), "a")),
    Row("Subscribe", ["consume topic:q"], _call(m.Subscribe("q"))),
    Row("Subscribe", ["consume topic:s"], _call(m.Subscribe("s"))),
    Row("Subscribe", ["consume topic:s", "use group:g"], _call(m.Subscribe("s", group="g"))),
    Row("Subscribe", ["consume topic:s"], _call(m.Subscribe("s", shared="workers"))),
    Row("Subscribe", ["consume topic:none"], _call(m.Subscribe("none"))),
    Row("Fetch", ["consume topic:s"], _call(m.Fetch("s", 0, 0))),
    Row("Fetch", ["browse topic:s"], _call(m.Fetch("s", 0, 0))),
    Row("Fetch", ["browse topic:q"], _call(m.Fetch("q", 0, 0))),
    Row("Fetch", ["browse topic:q", "consume topic:q"], _call(m.Fetch("q", 0, 0, where="key = 'a'"))),
    Row("Fetch", ["consume topic:both"], _call(m.Fetch("both", 0, 0, where="key = 'a'"))),
    Row("Fetch", ["browse topic:both"], _call(m.Fetch("both", 0, 0, unsettled=True))),
    Row("Fetch", ["consume topic:s"], _call(m.Fetch("__d.s", 0, 0))),
    Row("Fetch", ["browse topic:q"], _call(m.Fetch("__d.q", 0, 0, unsettled=True))),
    Row("Fetch", ["browse topic:none"], _call(m.Fetch("none", 0, 0))),
    Row("FindOffset", ["consume topic:s"], _call(m.FindOffset("s", 0, 1))),
    Row("FindOffset", ["browse topic:q"], _call(m.FindOffset("q", 0, 1))),
    Row("FindOffset", ["browse topic:none"], _call(m.FindOffset("none", 0, 1))),
    Row("Describe", ["see topic:q"], _call(m.Describe(["q"]))),
    Row("Describe", ["see topic:none"], _call(m.Describe(["none"]))),
    Row("OpenTransactions", ["use transaction:tx"], _call(m.OpenTransactions("tx", 10_000))),
    Row("EndTransaction", ["use transaction:tx"], _committed),
]
OWN = {
    "Settle": "names a subscription of this connection, which ends with the right to have it",
    "Credit": "as Settle",
    "Pull": "as Settle",
    "Unsubscribe": "as Settle",
    "Heartbeat": "as Settle",
    "Seek": "as Settle",
    "Commit": "as Settle",
    "Resolve": "as Settle",
    "SettleInTransaction": "as Settle, and names a transaction by a key that its opener got",
    "AddBranch": "names a transaction by a key that its opener got",
    "Administer": "each verb has its row",
    "Authenticate": "prolongs the login of the same user",
    "Reply": "names an address that is known to those who may read the request",
    "OpenInbox": "concerns the connection alone",
    "Ping": "concerns the connection alone",
    "Pong": "as Ping",
    "Goodbye": "as Ping",
    "Unknown": "is refused",
}
"""Requests that need no right of their own, and the reason."""
BINDING = {"exchange": "x", "key": "k"}
DELIVERY = {"partition": 0, "delivery_id": 1, "consumer": "c", "outcome": "done"}
BROKER_VERBS = {
    "connection.list": {},
    "connection.close": {"number": 99},
    "cluster.drain": {"node": 1},
    "cluster.undrain": {"node": 1},
    "cluster.remove": {"node": 1},
    "cluster.reassign": {"topic": "t", "nodes": [1]},
    "cluster.cancel": {"topic": "t"},
    "cluster.balance": {},
    "cluster.elect": {"topic": "t"},
    "cluster.upgrade": {},
    "user.create": {"name": "new"},
    "user.alter": {"name": "old", "scram": ""},
    "user.delete": {"name": "old"},
    "user.show": {"name": "root"},
    "user.list": {},
    "user.can": {"user": "root", "operation": "see", "resource": "broker"},
    "role.create": {"name": "new", "rules": {"broker": ["see"]}},
    "role.alter": {"name": "old", "rules": {"broker": ["see"]}},
    "role.delete": {"name": "old"},
    "role.show": {"name": "administrator"},
    "role.list": {},
}
ROWS = [
    *REQUESTS,
    Row("topic.create", ["configure topic:new"], _verb("topic.create", name="new")),
    Row(
        "topic.create",
        ["configure topic:new", "publish topic:dead", "bind exchange:x"],
        _verb("topic.create", name="new", settings={"dead_letter": "dead", "bindings": [BINDING]}),
    ),
    Row(
        "topic.create",
        ["configure topic:new", "run broker"],
        _verb("topic.create", name="new", settings={"storage": "dram"}),
    ),
    Row(
        "topic.create",
        ["configure topic:new", "run broker"],
        _verb("topic.create", name="new", settings={"interceptors": ["none"]}),
    ),
    Row(
        "topic.create",
        ["configure topic:new", "run broker"],
        _verb("topic.create", name="new", settings={"spark_sink": {"path": "p"}}),
    ),
    Row(
        "topic.create",
        ["configure topic:new", "run broker"],
        _verb("topic.create", name="new", settings={"spark_sink.path": "p"}),
    ),
    Row("topic.alter", ["configure topic:q"], _verb("topic.alter", name="q", settings={"lease": "9s"})),
    Row("topic.alter", ["configure topic:none"], _verb("topic.alter", name="none")),
    Row(
        "topic.alter",
        ["configure topic:q", "publish topic:dead"],
        _verb("topic.alter", name="q", settings={"dead_letter": "dead"}),
    ),
    Row(
        "topic.alter",
        ["configure topic:q", "publish exchange:x"],
        _verb("topic.alter", name="q", settings={"dead_letter_exchange": "x"}),
    ),
    Row("topic.delete", ["configure topic:q"], _verb("topic.delete", name="q")),
    Row("topic.delete", ["configure topic:none"], _verb("topic.delete", name="none")),
    Row("topic.show", ["see topic:q"], _verb("topic.show", name="q")),
    Row("topic.purge", ["configure topic:q"], _verb("topic.purge", name="q")),
    Row("scheduled.list", ["see topic:q"], _verb("scheduled.list", topic="q")),
    Row("scheduled.cancel", ["configure topic:q"], _verb("scheduled.cancel", topic="q", ids=["0/0"])),
    Row("scheduled.move", ["configure topic:q"], _verb("scheduled.move", topic="q", ids=["0/0"], due_ms=1)),
    Row("message.status", ["see topic:q"], _verb("message.status", topic="q", ids=[str(UUID(int=1))])),
    Row("exchange.create", ["configure exchange:new"], _verb("exchange.create", name="new")),
    Row(
        "exchange.create",
        ["configure exchange:new", "publish exchange:y", "bind exchange:x"],
        _verb("exchange.create", name="new", settings={"alternate": "y", "bindings": [BINDING]}),
    ),
    Row("exchange.delete", ["configure exchange:empty"], _verb("exchange.delete", name="empty")),
    Row("exchange.show", ["see exchange:x"], _verb("exchange.show", name="x")),
    Row("exchange.bind", ["bind exchange:x", "configure topic:q"], _verb("exchange.bind", exchange="x", topic="q")),
    Row(
        "exchange.bind",
        ["bind exchange:x", "configure exchange:y"],
        _verb("exchange.bind", exchange="x", target_exchange="y"),
    ),
    Row("exchange.unbind", ["bind exchange:x", "configure topic:q"], _verb("exchange.unbind", exchange="x", topic="q")),
    Row("group.list", ["see topic:s"], _verb("group.list", topic="s")),
    Row("group.show", ["see group:g"], _verb("group.show", group="g")),
    Row("group.reset", ["configure group:g"], _verb("group.reset", group="g", to="latest")),
    Row("group.delete", ["configure group:g"], _verb("group.delete", group="g")),
    Row("subscription.list", ["see topic:q"], _verb("subscription.list", topic="q")),
    Row("subscription.show", ["see topic:q"], _verb("subscription.show", topic="q")),
    Row("subscription.create", ["configure topic:s"], _verb("subscription.create", topic="s", subscription="w")),
    Row("subscription.delete", ["configure topic:s"], _verb("subscription.delete", topic="s", subscription="w")),
    Row("delivery.list", ["browse topic:q"], _verb("delivery.list", topic="q")),
    Row("delivery.resolve", ["configure topic:q"], _verb("delivery.resolve", topic="q", **DELIVERY)),
    Row("transaction.show", ["see transaction:tx"], _verb("transaction.show", name="tx")),
    Row("transaction.abort", ["configure transaction:tx"], _verb("transaction.abort", name="tx")),
    Row("service.list", ["see broker"], _verb("service.list")),
    Row("service.perform", ["run broker"], _verb("service.perform", service="spark", action="stop")),
    Row("broker.show", ["see broker"], _verb("broker.show")),
    Row("cluster.status", ["see broker"], _verb("cluster.status")),
    Row("cluster.moves", ["see broker"], _verb("cluster.moves")),
    Row("metrics.show", ["see broker"], _verb("metrics.show", names=["linn_topics"])),
    *[Row(verb, ["admin broker"], _verb(verb, **arguments)) for verb, arguments in BROKER_VERBS.items()],
]
LISTED = {"topic.list": "name", "exchange.list": "name", "group.list": "group", "subscription.list": "topic"}
"""Verbs whose result leaves out what its caller may not see, and the key by which it names things."""
LISTED_ELSEWHERE = {"delivery.list", "transaction.list"}


def _need(text: str) -> Need:
    operation, _, resource = text.partition(" ")
    kind, _, name = resource.partition(":")
    return Need(operation, kind, name)


def _rules(needs: Iterable[str]) -> dict[str, list[str]]:
    rules: dict[str, list[str]] = {}
    for operation, kind, name in map(_need, needs):
        rules.setdefault(f"{kind}:{name}" if name else kind, []).append(operation)
    return rules


class Rights:
    """The rights of `anonymous`, who is the client, changed by `root` while the client is connected."""

    def __init__(self, broker: Broker) -> None:
        self._root: Session = broker.gateway.session(Principal("test", name="root"))

    async def perform(self, verb: str, **arguments: Any) -> Any:
        return json.loads(await self._root.perform(verb, json.dumps(arguments)))

    async def begin(self) -> None:
        await self.perform("role.create", name="now", rules={})
        await self.perform("user.create", name="anonymous", roles=["now"])

    async def are(self, rules: dict[str, list[str]]) -> None:
        await self.perform("role.alter", name="now", rules=rules)


async def code_of(act: Act, client: RawClient) -> str:
    try:
        await act(client)
    except Refused as error:
        refused = error
    else:
        return ""
    assert refused.code != "linn.internal", refused.text
    assert refused.code != "auth.forbidden" or 'user "anonymous"' in refused.text
    return refused.code


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} by {', '.join(row.needs)}")
@simulated
async def test_a_request_needs_all_its_rights_and_no_other(env: SimEnv, row: Row) -> None:
    async with broker_on(env, FILE) as broker:
        client, rights = await connected(env), Rights(broker)
        assert await code_of(row.act, client) == "auth.forbidden"  # There is no such user.
        await rights.begin()
        assert await code_of(row.act, client) == "auth.forbidden"  # The user's role allows nothing.
        for left_out in row.needs:
            others = _rules(need for need in row.needs if need != left_out)
            every = [
                operation for operation in OPERATIONS[_need(left_out).kind] if operation != _need(left_out).operation
            ]
            operation, kind, name = _need(left_out)
            if operation != "see" and row.name not in ("Fetch", "FindOffset"):
                others[f"{kind}:{name}" if name else kind] = [
                    *others.get(f"{kind}:{name}" if name else kind, []),
                    *every,
                ]
            await rights.are(ELSEWHERE | others)
            assert await code_of(row.act, client) == "auth.forbidden", f"without {left_out}"
        await rights.are(_rules(row.needs))
        granted = await code_of(row.act, client)
        if row.name.partition(".")[0] not in ("user", "role"):  # Such a caller may give nothing that he lacks.
            assert granted != "auth.forbidden"
        await rights.are(EVERYTHING)
        assert await code_of(row.act, client) != "auth.forbidden"
        await rights.are({})
        assert await code_of(row.act, client) == "auth.forbidden"


def _public(part: type) -> set[str]:
    """The methods and properties of a part of a session."""
    return {name for name, member in vars(part).items() if not name.startswith("_") and _is_code(member)}


def _is_code(member: object) -> bool:
    return callable(member) or isinstance(member, property)


def test_every_request_verb_and_method_has_a_row() -> None:
    rows = {row.name for row in ROWS}
    assert {message.__name__ for message in _HANDLERS} - rows == OWN.keys()
    assert VERBS.keys() - rows == {
        "topic.list",
        "exchange.list",
        "definitions.export",
        "transaction.list",
        "user.whoami",
    }
    assert _public(SessionTransactions) == {
        "open",
        "add_branch",
        "announce",  # As add_branch, where the transactions are coordinated.
        "settle",
        "settle_over_brokers",  # As settle.
        "end",
        "end_over_brokers",  # As end.
        "check_branch",  # Only refuses.
        "at_coordinator",  # What it calls has a row, here or at the other broker.
        "is_clustered",
    }
    assert _public(SessionInbox) == {
        "open",  # An address of the connection itself.
        "reply_nowait",  # To an address, which is the right.
        "reply_elsewhere",  # As reply_nowait.
        "close",
    }
    assert _public(Session) == {
        "take_producer_id",  # A number, of no use without a right to publish.
        "producer_key",  # Of an id that the session uses.
        "claim_producer_id",  # Only with the key of the same user.
        "decide",  # Only asks.
        "decided",  # What it calls has a row.
        "topic_names",
        "partition_count",
        "topic_bounds",
        "bounds_elsewhere",  # Of the topics that the user may see.
        "leg",  # After a subscribe that passed the check, see test_consumers_elsewhere.
        "share_changed",  # A number, about a consumer of the session.
        "collect_metrics",
        "publish_lane",
        "publish",
        "subscribe",
        "is_missing",
        "make_missing",
        "subscribe_nowait",
        "unsubscribe",
        "refuse_subscriptions",
        "disconnect",
        "aclose",
        "fetch",
        "find_offset",
        "check_verb",
        "perform",
    }


@simulated
async def test_a_transaction_can_only_be_ended_with_the_right_to_use_its_name(env: SimEnv) -> None:
    async with broker_on(env, FILE) as broker:
        client, rights = await connected(env), Rights(broker)
        await rights.begin()
        await rights.are({"transaction:tx": ["use"]})
        opened = await client.call(m.OpenTransactions("tx", 10_000))
        numbers = opened.producer_id, opened.epoch, opened.number
        await rights.are({})
        assert await code_of(_call(m.EndTransaction(*numbers, True, producer_key=opened.producer_key)), client) == (
            "auth.forbidden"
        )
        await rights.are({"transaction:tx": ["use"]})
        assert await code_of(_call(m.EndTransaction(*numbers, True, producer_key=opened.producer_key)), client) == ""
