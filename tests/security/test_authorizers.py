"""An authorizer: each request waits for its answer, which holds for as long as it says; a failure is a denial."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
from raw_client import HEAD, Refused, broker_on, connected, records, simulated, values
from test_rights import EVERYTHING, FILE, ROWS, Row, _rules, code_of

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.auth import Forbidden
from linn.core.errors.tree import PluginError, PluginUnknown
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.authorizer import AuthorizerKind, Decision
from linn.core.security import authority as authority_module
from linn.core.security.access import Access
from linn.core.security.authority import (
    ANSWER_S,
    FAILED_HOLD_S,
    HOLD_S_MAX,
    QUESTIONS_AT_ONCE,
    WAITING_MAX,
    AskedAccess,
    Authority,
)
from linn.core.security.policy import Policy
from linn.core.security.rule import rules_of
from linn.core.security.users import User, Users
from linn.rights import Need
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ASKING = HEAD + 'authorizer = "asked"\n'


class Asked:
    """An authorizer that allows what rules say, after a while."""

    def __init__(self, rules: dict[str, list[str]] | None = None) -> None:
        self.rules = rules if rules is not None else EVERYTHING
        self.takes_s = 0.01
        self.holds_s = 1.0
        self.asked: list[Need] = []
        self.answer: Callable[[], object] | None = None
        """Replaces the answer."""

    async def may(self, user: str, operation: str, kind: str, name: str) -> Any:
        assert user in ("anonymous", "ann")
        self.asked.append(Need(operation, kind, name))
        await trio.sleep(self.takes_s)
        if self.answer is not None:
            return self.answer()
        return Decision(Access("x", rules_of(self.rules)).may(operation, kind, name), self.holds_s)


class Plugin:
    """Looks like an entry point, and is the plugin."""

    name, value, dist = "asked", "tests:asked", None

    def __init__(self, authorizer: object) -> None:
        self._authorizer = authorizer

    def load(self) -> object:
        return self

    @hookimpl
    def linn_register_authorizer(self) -> AuthorizerKind:
        return AuthorizerKind("asked", None, lambda settings, env: self._authorizer)  # type: ignore[arg-type, return-value]


def asking(env: SimEnv, asked: Asked, text: str = FILE) -> Any:
    return broker_on(env, text, ASKING, [Plugin(asked)])


# --- every request ---


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} by {', '.join(row.needs)}")
@simulated
async def test_each_request_is_allowed_by_the_first_answers(env: SimEnv, row: Row) -> None:
    """The client sends it once: whatever has to be asked for is asked for while it waits."""
    asked = Asked(_rules(row.needs))
    async with asking(env, asked):
        client = await connected(env)
        granted = await code_of(row.act, client)
        if row.name.partition(".")[0] not in ("user", "role"):  # An answer that ends gives no right to grant.
            assert granted != "auth.forbidden"
        for left_out in row.needs:
            asked.rules = _rules(need for need in row.needs if need != left_out)
            await trio.sleep(1.1)
            assert await code_of(row.act, client) == "auth.forbidden", f"without {left_out}"


@simulated
async def test_the_first_list_is_complete(env: SimEnv) -> None:
    names = [f"t{number:03}" for number in range(600)]
    text = "".join(f"[topics.{name}]\n" for name in names) + "[topics.hidden]\n"
    asked = Asked({"topic:t*": ["see", "browse"], "exchange:*": ["see"], "transaction:*": ["see", "use"]})
    async with asking(env, asked, text + "[exchanges.x]\n"):
        client = await connected(env)
        assert [topic["name"] for topic in await client.administer("topic.list")] == names
        assert (await client.administer("delivery.list"))["deliveries"] == []
        described = await (await connected(env)).call(m.Describe([]))
        assert [topic.name for topic in described.topics] == names
        await client.call(m.OpenTransactions("tx", 10_000))
        assert [row["name"] for row in (await client.administer("transaction.list"))["transactions"]] == ["tx"]


@simulated
async def test_metrics_wait_for_the_answer(env: SimEnv) -> None:
    text = FILE + '[listeners.metrics]\nprotocol = "metrics"\naddress = "127.0.0.1:9090"\n'
    async with asking(env, Asked({"broker": ["see"]}), text):
        stream = await env.net.connect("127.0.0.1:9090")
        await stream.send([b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"])
        buffer = memoryview(bytearray(64))
        await stream.receive_into(buffer)
        assert bytes(buffer).startswith(b"HTTP/1.1 200")


@simulated
async def test_what_roles_allow_is_not_asked_for(env: SimEnv) -> None:
    text = FILE + '[roles.writer]\n"topic:q" = ["publish"]\n[users.anonymous]\nroles = ["writer"]\n'
    asked = Asked({})
    async with asking(env, asked, text):
        client = await connected(env)
        await client.publish("q", ["a"])
        assert asked.asked == []
        assert (await client.administer("user.can", user="anonymous", operation="publish", resource="topic:q")) == {
            "allowed": True,
            "roles": ["writer"],
        }
        asked.rules = {"topic:s": ["publish"]}
        assert (await client.administer("user.can", user="anonymous", operation="publish", resource="topic:s")) == {
            "allowed": True,
            "roles": [],
        }


@simulated
async def test_the_audit_trail_stays_closed_and_reading_it_is_the_right_to_audit(env: SimEnv) -> None:
    asked = Asked({"topic:__audit": ["publish", "configure", "consume"]})
    async with asking(env, asked):
        client = await connected(env)
        for request in (m.Publish("__audit"), m.Fetch("__audit", 0, 0)):
            with pytest.raises(Refused, match=r"auth\.forbidden"):
                await client.call(request, [records(["a"])] if isinstance(request, m.Publish) else None)
        assert asked.asked == [Need("audit", "broker")]
        asked.rules = {"broker": ["audit"]}
        await trio.sleep(1.1)
        await client.call(m.Fetch("__audit", 0, 0))
        with pytest.raises(Refused, match=r"auth\.forbidden"):
            await client.publish("__audit", ["a"])


# --- waiting ---


@simulated
async def test_a_lane_waits_in_order_and_other_connections_go_on(env: SimEnv) -> None:
    asked = Asked()
    asked.takes_s, asked.holds_s = 3.0, 60.0
    text = FILE + '[roles.writer]\n"topic:q" = ["publish"]\n[users.anonymous]\nroles = ["writer"]\n'
    async with asking(env, asked, text) as broker:
        client, other = await connected(env), await connected(env)
        began_s = trio.current_time()
        sent = [await client.send(m.Publish("s"), [records([value])]) for value in ("a", "b")]
        sent += [await client.send(m.Publish("q"), [records(["behind"])])]
        await other.publish("q", ["first"])
        assert trio.current_time() - began_s < 1.0
        for correlation in sent:
            await client.answer(correlation)
        assert 3.0 <= trio.current_time() - began_s < 3.5
        assert asked.asked == [Need("publish", "topic", "s")]
        await client.publish("s", ["c"])
        assert asked.asked == [Need("publish", "topic", "s")], "the answer holds"
        asked.takes_s = 0.0
        assert await client.fetch("s") == ["a", "b", "c"]
        assert await client.taken("q", count=2) == ["first", "behind"]
        assert broker.publisher.memory.used_bytes == 0


@simulated
async def test_a_request_without_a_lane_holds_up_its_connection_alone(env: SimEnv) -> None:
    asked = Asked()
    asked.takes_s = 4.0
    async with asking(env, asked):
        client, other = await connected(env), await connected(env)
        describe = await client.send(m.Describe(["s"]))
        ping = await client.send(m.Ping())
        await other.call(m.Ping())
        await client.answer(ping)
        assert client.is_answered(describe), "requests are carried out in order"
        assert await client.code_of(describe) == ""


@simulated
async def test_a_client_may_leave_while_the_authorizer_is_asked(env: SimEnv) -> None:
    asked = Asked()
    asked.takes_s = 4.0
    async with asking(env, asked) as broker:
        client = await connected(env)
        await client.send(m.Publish("s"), [records(["a"])])
        await client.send(m.Fetch("s", 0, 0))
        await client.stream.aclose()
        await trio.sleep(10)
        assert broker.client_count == 0
        other = await connected(env)
        assert (await other.publish("s", ["b"])).copies == 1


@simulated
async def test_many_keys_of_the_nameless_exchange_are_asked_for_together(env: SimEnv) -> None:
    asked = Asked()
    asked.takes_s = 1.0
    text = "".join(f"[topics.t{number}]\n" for number in range(60))
    async with asking(env, asked, text):
        client, began_s = await connected(env), trio.current_time()
        keys = [f"t{number}" for number in range(60)]
        batch = build_from_records([Record(value=b"v", routing_key=key) for key in keys], base_id=1)
        await client.call(m.Publish("", to_exchange=True), [batch])
        wanted = {Need("publish", "topic", key) for key in keys}
        assert sorted(need for need in asked.asked if need.operation == "publish") == sorted(wanted)
        assert trio.current_time() - began_s < 2.0


# --- how long an answer holds ---


@simulated
async def test_an_answer_holds_for_as_long_as_it_says(env: SimEnv) -> None:
    asked = Asked()
    asked.holds_s = 30.0
    async with asking(env, asked):
        client = await connected(env)
        await client.publish("q", ["a"])
        asked.rules = {}
        await trio.sleep(29.9)
        await client.publish("q", ["b"])
        await trio.sleep(0.2)
        with pytest.raises(Refused, match=r"auth\.forbidden"):
            await client.publish("q", ["c"])
        asked.rules = EVERYTHING
        with pytest.raises(Refused, match=r"auth\.forbidden"):
            await client.publish("q", ["d"])
        await trio.sleep(30.1)
        await client.publish("q", ["e"])
        assert len(asked.asked) == 3


@simulated
async def test_a_consumer_is_asked_for_again_in_time_and_ends_with_its_right(env: SimEnv) -> None:
    asked = Asked()
    asked.holds_s, asked.takes_s = 30.0, 2.0
    async with asking(env, asked):
        client = await connected(env)
        await client.call(m.Subscribe("s", group="g"))
        for _ in range(7):
            await trio.sleep(10)
            await client.call(m.Ping())
        assert isinstance((await client.push()).message, m.Assigned)
        assert not client.pushed, "it goes on as long as it is allowed"
        assert asked.asked.count(Need("use", "group", "g")) == 3
        asked.rules = {"topic:s": ["consume"]}
        began_s = trio.current_time()
        ended = (await client.push(40)).message
        assert isinstance(ended, m.Ended)
        assert (ended.code, "use group:g" in ended.text) == ("auth.forbidden", True)
        assert trio.current_time() - began_s <= 30
        asked.asked.clear()
        await trio.sleep(100)
        assert asked.asked == [], "nobody needs them any more"


@simulated
async def test_a_consumer_ends_when_the_authorizer_is_late(env: SimEnv) -> None:
    asked = Asked()
    asked.holds_s = 4.0
    async with asking(env, asked):
        client = await connected(env)
        await client.call(m.Subscribe("s"))
        asked.takes_s, began_s = 100.0, trio.current_time()
        ended = (await client.push(40)).message
        assert isinstance(ended, m.Ended)
        assert trio.current_time() - began_s <= 4.1, "an answer holds no longer than it says"


@simulated
async def test_a_change_of_roles_ends_no_consumer_that_the_authorizer_allows(env: SimEnv) -> None:
    asked = Asked({"topic:s": ["consume"], "broker": ["admin"]})
    asked.holds_s = 60.0
    async with asking(env, asked):
        client = await connected(env)
        await client.call(m.Subscribe("s"))
        await client.administer("role.create", name="empty", rules={})
        assert await client.is_silent(5)


@simulated
async def test_a_waiting_fetch_is_asked_for_again(env: SimEnv) -> None:
    asked = Asked()
    async with asking(env, asked):
        client, other = await connected(env), await connected(env)
        waiting = await client.send(m.Fetch("s", 0, 0, wait_max_ms=30_000))
        await trio.sleep(5)
        await other.publish("s", ["a"])
        assert values((await client.answer(waiting)).batches) == ["a"]
        waiting = await client.send(m.Fetch("s", 0, 1, wait_max_ms=30_000))
        asked.rules = {"topic:s": ["publish"]}
        await trio.sleep(5)
        await other.publish("s", ["b"])
        assert await client.code_of(waiting) == "auth.forbidden"


@simulated
async def test_a_transaction_outlives_answers(env: SimEnv) -> None:
    asked = Asked({"transaction:tx": ["use"]})
    async with asking(env, asked):
        client = await connected(env)
        opened = await client.call(m.OpenTransactions("tx", 60_000))
        numbers = opened.producer_id, opened.epoch, opened.number
        for branch in (1, 2):
            await trio.sleep(5)
            await client.call(m.AddBranch(*numbers[:2], client.welcome.producer_id + branch, opened.producer_key))
        await trio.sleep(5)
        await client.call(m.EndTransaction(*numbers, True, producer_key=opened.producer_key))
        assert len(asked.asked) == 4


# --- failures ---


def _raise() -> object:
    raise ValueError("the password is opensesame")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_raise, "failed: ValueError in"),
        (lambda: None, "answered with a NoneType"),
        (lambda: True, "answered with a bool"),
        (lambda: (True, 60.0), "answered with a tuple"),
        (lambda: Decision(1, 60.0), "answered with a int"),  # type: ignore[arg-type]
        (lambda: Decision(True, 0.5), "time to hold"),
        (lambda: Decision(True, float("nan")), "time to hold"),
        (lambda: Decision(True, "60"), "time to hold"),  # type: ignore[arg-type]
        (None, "no answer in time"),
    ],
)
def test_a_failure_denies_for_a_second_and_is_logged_once(
    answer: Callable[[], object] | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked()
    asked.answer, asked.takes_s = answer, 0.01 if answer else 100.0

    @simulated
    async def scenario(env: SimEnv) -> None:
        async with asking(env, asked):
            client, began_s = await connected(env), trio.current_time()
            for _ in range(5):
                with pytest.raises(Refused, match=r"auth\.forbidden"):
                    await client.publish("q", ["a"])
            assert trio.current_time() - began_s < ANSWER_S + FAILED_HOLD_S
            assert len(asked.asked) == 1, "it is not hammered"
            asked.answer, asked.takes_s = None, 0.01
            await trio.sleep(FAILED_HOLD_S + 0.1)
            await client.publish("q", ["a"])

    with caplog.at_level(logging.INFO):
        scenario()
    told = [record.getMessage() for record in caplog.records if record.name == "linn.rights"]
    assert len(told) == 1
    assert says in told[0]
    assert "opensesame" not in caplog.text


@simulated
async def test_refusals_are_in_the_audit_trail_once_they_are_decided(env: SimEnv) -> None:
    asked = Asked({})
    async with asking(env, asked) as broker:
        client = await connected(env)
        with pytest.raises(Refused):
            await client.publish("q", ["a"])
        found = [json.loads(text) for text in values(await broker.topics["__audit"].partitions[0].read(0, 1 << 20))]
        assert [(row["action"], row["outcome"]) for row in found if "publish" in row["action"]] == [
            ("publish topic", "auth.forbidden")
        ]


# --- the authority itself ---


class World:
    """An authority, with its tasks in a nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.asked: list[Need] = []
        self.holds_s = 10.0
        self.gate = trio.Event()
        self.authority = Authority(self._may, trio.current_time, nursery.start_soon, str)
        self.policy = Policy({}, Users([User(name="ann")]))
        self.policy.authority = self.authority

    async def _may(self, user: str, operation: str, kind: str, name: str) -> object:
        self.asked.append(Need(operation, kind, name))
        await self.gate.wait()
        return Decision(True, self.holds_s)

    def ann(self) -> AskedAccess:
        access = self.policy.access("ann")
        assert isinstance(access, AskedAccess)
        return access


async def test_questions_are_bounded_and_the_rest_is_denied(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        ann = world.ann()
        for number in range(WAITING_MAX + 10):
            ann.may("see", "topic", f"t{number}")
        assert len(ann.pending) == WAITING_MAX
        assert not ann.may("see", "topic", f"t{WAITING_MAX + 1}")
        with pytest.raises(Forbidden) as caught:
            ann.check("see", "topic", f"t{WAITING_MAX + 1}")
        assert caught.value.undecided == ()
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.asked) == QUESTIONS_AT_ONCE
        world.gate.set()


async def test_an_answer_holds_for_an_hour_at_most_and_what_nobody_uses_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        world.gate.set()
        world.holds_s = float("inf")
        nursery.start_soon(world.authority.run)
        ann = world.ann()
        await ann.decide([Need("see", "topic", "a")])
        await trio.sleep(HOLD_S_MAX - 1)
        assert ann.may("see", "topic", "a")
        assert not ann.covers(rules_of({"topic:a": ["see"]})[0]), "nobody grants for ever what holds for an hour"
        await trio.sleep(2)
        assert not ann.held
        nursery.cancel_scope.cancel()


async def test_an_answer_after_a_blocked_loop_is_late(autojump_clock: trio.testing.MockClock) -> None:
    """It comes without a pause in which it could be cancelled."""

    async def blocking(user: str, operation: str, kind: str, name: str) -> Decision:
        autojump_clock.jump(ANSWER_S + 1)
        return Decision(True, 60.0)

    async with trio.open_nursery() as nursery:
        policy = Policy({}, Users())
        policy.authority = Authority(blocking, trio.current_time, nursery.start_soon, str)
        ann = policy.access("ann")
        await ann.decide([Need("see", "topic", "a")])
        assert not ann.may("see", "topic", "a")


async def test_ends_of_users_who_have_left_are_dropped(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        world.gate.set()
        world.authority._compacted_at = 100
        monkeypatch.setattr(authority_module, "COMPACTED_AT", 100)
        for _ in range(30):
            ann = world.ann()
            await ann.decide([Need("see", "topic", f"t{number}") for number in range(20)])
            del ann
            gc.collect(1)
        assert len(world.authority._due) <= 120


# --- configuration ---


def test_an_authorizer_closes_the_broker_and_has_to_exist() -> None:
    @simulated
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, FILE, HEAD + 'authorizer = "askd"\n', [Plugin(Asked())]):
            pass

    with pytest.raises(PluginUnknown, match=r'there is no authorizers "askd"; did you mean "asked"\?'):
        scenario()


@simulated
async def test_without_roles_and_logins_an_authorizer_decides_everything(env: SimEnv) -> None:
    async with asking(env, Asked({}), "[topics.q]\n") as broker:
        assert not broker.config.is_open
        with pytest.raises(Refused, match=r"auth\.forbidden"):
            await (await connected(env)).publish("q", ["a"])


def test_a_factory_that_fails_stops_the_start() -> None:
    class Failing(Plugin):
        @hookimpl
        def linn_register_authorizer(self) -> AuthorizerKind:
            return AuthorizerKind("asked", None, lambda settings, env: 1 / 0)  # type: ignore[arg-type, return-value]

    @simulated
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, FILE, ASKING, [Failing(None)]):
            pass

    with pytest.raises(PluginError, match='the factory of "asked" failed: ZeroDivisionError'):
        scenario()
