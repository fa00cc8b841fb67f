"""Users and roles while the broker runs: verbs, restarts, the limits of granting, and the ends that a change brings."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import trio
from raw_client import RawClient, Refused, after_power_loss, broker_on, records, served, simulated
from test_rights import Rights

from linn.core.broker.broker import Broker
from linn.core.errors.auth import Forbidden, UserExists, UserUnknown
from linn.core.errors.tree import ConfigError, ConfigNotLive, LinnError
from linn.core.ports.principal import Principal
from linn.core.publish.request import PublishRequest
from linn.core.security.sasl.scram import make_verifier
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

VERIFIER = make_verifier("secret", bytes(16), 4_096).text()
FILE = """
[roles.keeper]
broker = ["admin"]
"topic:kept.*" = ["publish"]
[users.root]
roles = ["administrator"]
[users.keeper]
roles = ["keeper"]
[topics.q]
[topics.s]
kind = "stream"
[topics.narrow]
bytes_max = "10KiB"
message_bytes_max = "10KiB"
overflow = "block"
"""


async def _perform(broker: Broker, verb: str, user: str = "root", /, **arguments: Any) -> Any:
    return json.loads(await broker.gateway.session(Principal("test", name=user)).perform(verb, json.dumps(arguments)))


async def _error(broker: Broker, verb: str, user: str = "root", /, **arguments: Any) -> type[LinnError]:
    with pytest.raises(LinnError) as caught:
        await _perform(broker, verb, user, **arguments)
    return caught.type


@served(FILE)
async def test_users_and_roles_are_made_shown_changed_and_deleted(broker: Broker) -> None:
    rules = {"topic:q": ["see", "publish"]}
    assert await _perform(broker, "role.create", name="r", rules=rules) == {"created": True}
    assert await _perform(broker, "role.create", name="r", rules=rules) == {"created": False}
    assert await _perform(broker, "role.show", name="r") == {"role": "r", "rules": rules, "in_file": False}
    assert [role["role"] for role in await _perform(broker, "role.list")] == ["administrator", "keeper", "r"]
    assert await _perform(broker, "user.create", name="alice", roles=["r"], scram=VERIFIER, uid=7) == {"created": True}
    assert await _perform(broker, "user.create", name="alice", roles=["r"], scram=VERIFIER, uid=7) == {"created": False}
    shown = {"user": "alice", "roles": ["r"], "has_password": True, "certificate": "", "uid": 7, "limits": {}}
    shown["in_file"] = False
    assert await _perform(broker, "user.show", name="alice") == shown
    asked = {"user": "alice", "operation": "publish", "resource": "topic:q"}
    assert await _perform(broker, "user.can", **asked) == {"allowed": True, "roles": ["r"]}
    assert await _perform(broker, "user.can", "alice", **asked) == {"allowed": True, "roles": ["r"]}
    assert await _perform(broker, "user.alter", name="alice", scram="", uid=-1) == {"changed": True}
    assert await _perform(broker, "user.alter", name="alice", scram="", uid=-1) == {"changed": False}
    assert await _perform(broker, "user.show", name="alice") == shown | {"has_password": False, "uid": None}
    assert await _error(broker, "role.delete", name="r") is UserExists
    assert await _perform(broker, "user.alter", name="alice", roles=[]) == {"changed": True}
    assert await _perform(broker, "user.can", **asked) == {"allowed": False, "roles": []}
    assert await _perform(broker, "role.delete", name="r") == {}
    assert await _perform(broker, "user.delete", name="alice") == {}
    assert await _error(broker, "user.show", name="alice") is UserUnknown


@served(FILE)
async def test_of_two_administrators_neither_loses_the_others_change(env: SimEnv, broker: Broker) -> None:
    """Roles are added to those that the user has when the change is carried out, and taken from them."""
    for role in ("a", "b", "c"):
        await _perform(broker, "role.create", name=role, rules={})
    await _perform(broker, "user.create", name="alice", roles=["c"])
    changes: list[dict[str, Any]] = [{"add_roles": ["a"]}, {"add_roles": ["b"], "remove_roles": ["c", "none"]}]
    async with trio.open_nursery() as nursery:
        for change in changes:
            nursery.start_soon(partial(_perform, broker, "user.alter", name="alice", **change))
    assert sorted((await _perform(broker, "user.show", name="alice"))["roles"]) == ["a", "b"]
    assert await _perform(broker, "user.alter", name="alice", add_roles=["a"]) == {"changed": False}
    await _perform(broker, "user.alter", name="alice", roles=["c"], add_roles=["a"], remove_roles=["c"])
    assert (await _perform(broker, "user.show", name="alice"))["roles"] == ["a"]
    assert await _error(broker, "user.alter", name="alice", add_roles=["none"]) is UserUnknown


@served(FILE)
async def test_wrong_requests_are_refused_and_change_nothing(broker: Broker) -> None:
    before = await _perform(broker, "user.list"), await _perform(broker, "role.list")
    assert await _error(broker, "user.create", name="a\nb") is ConfigError
    assert await _error(broker, "user.create", name="alice", roles=["none"]) is UserUnknown
    assert await _error(broker, "user.create", name="alice", scram="secret") is ConfigError
    assert await _error(broker, "user.create", name="alice", scram=VERIFIER.replace("4096", "1")) is ConfigError
    assert await _error(broker, "user.create", name="root", roles=[]) is UserExists
    assert await _error(broker, "user.alter", name="root", roles=[]) is ConfigNotLive
    assert await _error(broker, "user.delete", name="root") is ConfigNotLive
    assert await _error(broker, "user.delete", name="none") is UserUnknown
    assert await _error(broker, "role.create", name="a/b", rules={}) is ConfigError
    assert await _error(broker, "role.create", name="r", rules={"topic:a*b": ["see"]}) is ConfigError
    assert await _error(broker, "role.create", name="r", rules={"role:r": ["see"]}) is ConfigError
    assert await _error(broker, "role.create", name="administrator", rules={}) is UserExists
    assert await _error(broker, "role.alter", name="administrator", rules={}) is ConfigNotLive
    assert await _error(broker, "role.delete", name="keeper") is ConfigNotLive
    assert await _error(broker, "user.can", user="root", operation="see", resource="topic") is ConfigError
    assert await _error(broker, "user.can", user="root", operation="bind", resource="topic:a") is ConfigError
    assert await _perform(broker, "user.create", name="alice", validate_only=True) == {"created": True}
    assert (await _perform(broker, "user.list"), await _perform(broker, "role.list")) == before


@served(FILE)
async def test_a_caller_gives_and_takes_no_right_that_he_lacks(broker: Broker) -> None:
    wider, own = {"topic:*": ["publish"]}, {"topic:kept.a*": ["publish"]}
    await _perform(broker, "role.create", name="wider", rules=wider)
    await _perform(broker, "user.create", name="strong", roles=["wider"])
    assert await _perform(broker, "role.create", "keeper", name="own", rules=own) == {"created": True}
    assert await _perform(broker, "user.create", "keeper", name="weak", roles=["own"]) == {"created": True}
    for verb, arguments in [
        ("role.create", {"name": "r", "rules": wider}),
        ("role.alter", {"name": "own", "rules": wider}),
        ("role.alter", {"name": "wider", "rules": {}}),
        ("role.delete", {"name": "wider"}),
        ("user.create", {"name": "u", "roles": ["administrator"]}),
        ("user.alter", {"name": "weak", "roles": ["wider"]}),
        ("user.alter", {"name": "weak", "add_roles": ["wider"]}),
        ("user.alter", {"name": "strong", "remove_roles": ["wider"]}),
        ("user.alter", {"name": "strong", "scram": "known to the keeper"}),
        ("user.alter", {"name": "strong", "roles": []}),
        ("user.delete", {"name": "strong"}),
    ]:
        assert await _error(broker, verb, "keeper", **arguments) is Forbidden, (verb, arguments)
    assert await _error(broker, "user.list", "weak") is Forbidden


@simulated
async def test_users_and_roles_survive_a_power_loss_and_the_file_wins(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, FILE) as broker:
            await _perform(broker, "role.create", name="r", rules={"topic:q": ["publish"]})
            await _perform(broker, "user.create", name="alice", roles=["r"])
            await _perform(broker, "user.create", name="bob", roles=["administrator"])
            env.crash()

    await env.run_until_death(process)
    text = FILE + "[users.bob]\n"
    env = await after_power_loss(env, text)
    async with broker_on(env, text) as broker:
        may = broker.policy.access
        assert may("alice").may("publish", "topic", "q")
        assert not may("bob").may("publish", "topic", "q")


@served(FILE)
async def test_a_lost_right_ends_consumers_and_waiting_fetches_at_once(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:
    rights = Rights(broker)
    await rights.begin()
    full = {"topic:q": ["consume", "publish"], "topic:s": ["consume"], "group:g": ["use"]}
    await rights.are(full)
    queue = (await client.call(m.Subscribe("q", credit=10))).subscription
    reader = (await client.call(m.Subscribe("s", credit=10))).subscription
    member = (await client.call(m.Subscribe("s", group="g", credit=10))).subscription
    assert isinstance((await client.push()).message, m.Assigned)
    await client.publish("q", ["leased"])
    delivery = await client.delivery()
    fetch = await client.send(m.Fetch("s", 0, 0, wait_max_ms=60_000))
    before = env.clock.monotonic()
    await rights.are({"topic:q": ["publish"], "group:g": ["use"]})
    ended = {(await client.push()).message.subscription: "" for _ in range(3)}
    assert ended.keys() == {queue, reader, member}
    assert env.clock.monotonic() - before < 1
    with pytest.raises(Refused, match="no subscription"):
        await client.settle(queue, delivery)
    publisher = broker.gateway.session(Principal("test", name="root"))
    await publisher.publish(PublishRequest("s", [records(["secret"])]))
    assert await client.code_of(fetch) == "auth.forbidden"
    await rights.are(full)
    assert await client.taken("q", count=1) == ["leased"]  # The lease ended with the consumer.


@served(FILE)
async def test_a_publish_that_waits_for_room_is_refused_when_the_right_is_lost(
    broker: Broker, client: RawClient
) -> None:
    rights = Rights(broker)
    await rights.begin()
    await rights.are({"topic:narrow": ["publish", "consume"]})
    await client.publish("narrow", ["a" * 8_000])
    waiting = await client.send(m.Publish("narrow"), [records(["b" * 8_000])])
    subscription = (await client.call(m.Subscribe("narrow"))).subscription
    taken = await client.pull(subscription)
    await rights.are({"topic:narrow": ["consume"]})
    assert await client.settle(subscription, taken) == []
    assert await client.code_of(waiting) == "auth.forbidden"


@served(FILE)
async def test_lists_and_results_tell_only_of_what_the_caller_may_see(broker: Broker, client: RawClient) -> None:
    root = Rights(broker)
    await root.perform("exchange.create", name="x", settings={"type": "fanout"})
    for topic in ("q", "s"):
        await root.perform("exchange.bind", exchange="x", topic=topic)
    await root.begin()
    await root.are(
        {"topic:q": ["see"], "exchange:x": ["publish", "configure"], "group:g": ["use"], "topic:q2": ["see"]}
    )
    assert [topic["name"] for topic in await client.administer("topic.list")] == ["q"]
    assert [topic.name for topic in (await client.call(m.Describe())).topics] == ["q"]
    assert [one["topic"] for one in await client.administer("subscription.list")] == ["q"]
    (exchange,) = await client.administer("exchange.list")
    assert [binding["topic"] for binding in exchange["bindings"]] == ["q"]
    assert await client.administer("transaction.list") == {"transactions": [], "more": 0}
    placement = await client.publish("x", ["a"], to_exchange=True)
    assert (placement.partition, placement.base_offset, placement.copies) == (-1, -1, 2)
    with pytest.raises(Refused) as refused:
        await client.administer("exchange.delete", name="x")
    assert refused.value.text == "exchange x still has bindings: q"


@served(FILE)
async def test_an_error_behind_an_exchange_names_no_topic_that_the_publisher_may_not_see(
    broker: Broker, client: RawClient
) -> None:
    root = Rights(broker)
    await root.perform("exchange.create", name="x", settings={"type": "fanout"})
    await root.perform("exchange.bind", exchange="x", topic="narrow")
    await root.begin()
    for seen in (False, True):
        await root.are({"exchange:x": ["publish"], "topic:narrow": ["see"]} if seen else {"exchange:x": ["publish"]})
        with pytest.raises(Refused) as refused:
            await client.publish("x", ["a" * 11_000], to_exchange=True)
        is_told = refused.value.text != "a topic behind the exchange refuses it"
        assert (refused.value.code, is_told) == ("message.too_large", seen)
    await root.perform("topic.alter", name="narrow", settings={"overflow": "reject"})
    await client.publish("x", ["a" * 9_000], to_exchange=True)
    for seen in (True, False):
        await root.are({"exchange:x": ["publish"], "topic:narrow": ["see"]} if seen else {"exchange:x": ["publish"]})
        with pytest.raises(Refused) as refused:
            await client.publish("x", ["a" * 9_000], to_exchange=True)
        assert (refused.value.code, "narrow" in refused.value.text) == ("topic.full", seen)


@served(FILE)
async def test_a_page_of_metrics_needs_the_right_to_see_the_broker(broker: Broker) -> None:
    session = broker.gateway.session(Principal("test"))
    with pytest.raises(Forbidden):
        await session.collect_metrics()
    rights = Rights(broker)
    await rights.begin()
    await rights.are({"broker": ["see"]})
    assert next(await session.collect_metrics())


@served("[topics.q]\n")
async def test_without_users_and_roles_in_the_file_everything_is_allowed(client: RawClient) -> None:
    await client.publish("q", ["a"])
    assert (await client.administer("broker.show"))["topics"] == 1


@served(
    '[users.root]\nroles = ["administrator"]\n',
    head='[broker]\ndata_dir = "data"\ndrain_timeout = "2s"\nauto_create_topics = true\n',
)
async def test_a_topic_that_is_made_by_using_it_needs_the_right_to_configure_it(
    broker: Broker, client: RawClient
) -> None:
    rights = Rights(broker)
    await rights.begin()
    for name in ("new", "late"):
        for lacking in (["publish", "consume"], ["configure"]):
            await rights.are({f"topic:{name}": lacking})
            with pytest.raises(Refused, match="may not"):
                await (client.publish(name, ["a"]) if name == "new" else client.call(m.Subscribe(name)))
            assert name not in broker.topics
    await rights.are({"topic:*": ["publish", "consume", "configure"]})
    await client.publish("new", ["a"])
    await client.call(m.Subscribe("late"))
    assert {"new", "late"} <= broker.topics.keys()


@served(FILE)
async def test_changing_the_bindings_of_a_topic_needs_the_right_to_each_exchange_before_and_after(
    broker: Broker, client: RawClient
) -> None:
    rights = Rights(broker)
    for name in ("x", "y"):
        await rights.perform("exchange.create", name=name)
    await rights.perform("topic.alter", name="q", settings={"bindings": [{"exchange": "x"}]})
    await rights.begin()
    changes = {"topic:q": ["configure"]}
    for granted, code in (({}, "auth.forbidden"), ({"exchange:y": ["bind"]}, "auth.forbidden")):
        await rights.are(changes | granted)
        with pytest.raises(Refused) as refused:
            await client.administer("topic.alter", name="q", settings={"bindings": [{"exchange": "y"}]})
        assert refused.value.code == code
    await rights.are(changes | {"exchange:*": ["bind"]})
    await client.administer("topic.alter", name="q", settings={"bindings": [{"exchange": "y"}]})
