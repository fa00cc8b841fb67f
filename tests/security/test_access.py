"""Rules of roles: exact names, prefixes, the broker's own names, and the limits of granting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.batch.steps import run_steps
from linn.core.errors.auth import Forbidden
from linn.core.errors.tree import ConfigError
from linn.core.security.access import ANSWERS_MAX, Access
from linn.core.security.policy import ADMINISTRATOR, Policy
from linn.core.security.rule import RULES_MAX, described_rules, rules_of
from linn.core.security.users import User, Users, check_user_name
from linn.rights import OPERATIONS

NAMES = st.text(st.sampled_from("ab.*_"), min_size=1, max_size=6)


def _access(**table: list[str]) -> Access:
    return Access("alice", rules_of({key.replace("__", ":", 1): value for key, value in table.items()}))


def test_nothing_is_allowed_without_a_rule() -> None:
    access = Access("alice")
    for kind, operations in OPERATIONS.items():
        assert not any(access.may(operation, kind, "orders") for operation in operations)
    with pytest.raises(Forbidden, match='user "alice" may not publish topic:orders'):
        access.check("publish", "topic", "orders")


def test_a_rule_allows_its_operations_and_to_see_and_nothing_else() -> None:
    access = _access(topic__orders=["publish"])
    allowed = [operation for operation in OPERATIONS["topic"] if access.may(operation, "topic", "orders")]
    assert allowed == ["see", "publish"]
    assert not access.may("publish", "topic", "orders2")
    assert not access.may("publish", "exchange", "orders")


def test_a_prefix_reaches_names_that_begin_with_it_but_none_of_the_brokers_own() -> None:
    access = Access("alice", rules_of({"topic:orders.*": ["consume"], "topic:*": ["see"], "topic:__own": ["browse"]}))
    assert access.may("consume", "topic", "orders.new")
    assert access.may("consume", "topic", "orders.")
    assert not access.may("consume", "topic", "orders")
    assert access.may("see", "topic", "anything")
    assert not access.may("see", "topic", "__g.orders")
    assert access.may("browse", "topic", "__own")
    assert not access.may("consume", "topic", "__own")


def test_the_audit_trail_is_read_by_auditors_and_altered_by_nobody() -> None:
    auditor = Access("alice", rules_of({"broker": ["audit"]}))
    other = Access(
        "bob", rules_of({"topic:__audit": ["consume", "browse", "publish", "configure"], "topic:*": ["see"]})
    )
    for access, reads in ((auditor, True), (other, False), (Policy({}, Users(), is_open=True).access("a"), True)):
        may = {operation for operation in OPERATIONS["topic"] if access.may(operation, "topic", "__audit")}
        assert may == ({"see", "consume", "browse"} if reads else set())


@given(st.dictionaries(NAMES, st.sampled_from(["publish", "consume", "browse"]), max_size=6), NAMES)
def test_rules_allow_what_a_search_through_all_of_them_finds(rules: dict[str, str], name: str) -> None:
    table = {f"topic:{pattern}": [operation] for pattern, operation in rules.items() if "*" not in pattern[:-1]}
    access = Access("alice", rules_of(table))

    def is_met(pattern: str) -> bool:
        if not pattern.endswith("*"):
            return pattern == name
        return name.startswith(pattern[:-1]) and not name.startswith("__")

    for operation in ("publish", "consume", "browse"):
        met = [key for key, (allowed,) in table.items() if allowed == operation and is_met(key.removeprefix("topic:"))]
        for _ in range(2):  # The second answer is remembered.
            assert access.may(operation, "topic", name) == bool(met)


def test_remembered_answers_end_with_a_change_and_are_bounded() -> None:
    access = _access(topic__a=["publish"])
    assert access.may("publish", "topic", "a")
    access.change(rules_of({"topic:b": ["publish"]}))
    assert not access.may("publish", "topic", "a")
    assert access.may("publish", "topic", "b")
    for number in range(ANSWERS_MAX + 10):
        access.may("publish", "topic", str(number))
    assert len(access._answers) <= ANSWERS_MAX


@pytest.mark.parametrize(
    "table",
    [
        {"*": ["see"]},
        {"**": ["see"]},
        {"": ["see"]},
        {"topic": ["see"]},
        {"topic:": ["see"]},
        {"topic:**": ["see"]},
        {"topic:a*b": ["see"]},
        {"topic:*.b": ["see"]},
        {"broker:": ["see"]},
        {"broker:x": ["see"]},
        {"role:x": ["see"]},
        {"roles": ["x"]},
        {"topic:a": []},
        {"topic:a": "publish"},
        {"topic:a": ["publish", 1]},
        {"topic:a": ["bind"]},
        {"topic:a": ["*"]},
        {"topic:" + "a" * 600: ["see"]},
        {f"topic:{number}": ["see"] for number in range(RULES_MAX + 1)},
    ],
)
def test_wrong_rules_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        rules_of(table)


def test_rules_are_described_as_they_were_written() -> None:
    table = {"topic:a.*": ["see", "publish"], "group:g": ["see", "use"], "broker": ["see", "admin"]}
    assert described_rules(rules_of(table)) == table


@pytest.mark.parametrize(
    ("granted", "covered"),
    [
        ({"topic:a": ["publish"]}, True),
        ({"topic:ab*": ["publish"]}, True),
        ({"topic:a*": ["publish"]}, True),
        ({"topic:*": ["publish"]}, False),
        ({"topic:a": ["consume"]}, False),
        ({"topic:b": ["consume"]}, True),
        ({"topic:b*": ["consume"]}, False),
        ({"broker": ["see"]}, False),
    ],
)
def test_only_rights_that_somebody_has_can_be_granted(granted: dict[str, object], covered: bool) -> None:
    access = Access("alice", rules_of({"topic:a*": ["publish"], "topic:b": ["consume"]}))
    assert all(access.covers(rule) for rule in rules_of(granted)) == covered


def test_a_policy_follows_users_and_roles() -> None:
    told: list[str] = []
    policy = Policy({"reader": rules_of({"topic:a": ["consume"]})}, Users([User(name="alice", roles=("reader",))]))
    alice, nobody = policy.access("alice"), policy.access("bob")
    assert policy.access("alice") is alice
    alice.watchers[lambda: told.append("alice")] = {}
    assert (alice.may("consume", "topic", "a"), nobody.may("see", "topic", "a")) == (True, False)
    assert policy.roles_that_allow("alice", "consume", "topic", "a") == ["reader"]
    run_steps(policy.put_role("reader", rules_of({"topic:b": ["consume"]})))
    assert (alice.may("consume", "topic", "a"), alice.may("consume", "topic", "b")) == (False, True)
    run_steps(policy.put_user(User(name="bob", roles=(ADMINISTRATOR,))))
    assert nobody.may("run", "broker")
    run_steps(policy.remove_user("alice"))
    assert not alice.may("consume", "topic", "b")
    assert told == ["alice"] * 3


def test_roles_of_a_login_are_added_and_share_the_users_limits() -> None:
    reader, writer = rules_of({"topic:a": ["consume"]}), rules_of({"topic:a": ["publish"]})
    policy = Policy({"reader": reader}, Users([User(name="alice", roles=("reader",))]))
    alone, more = policy.access("alice"), policy.access("alice", ["writer", "none"])
    assert policy.access("alice", ("none", "writer")) is more
    assert more is not alone
    assert more.quota is alone.quota
    assert not more.may("publish", "topic", "a")
    run_steps(policy.put_role("writer", writer))
    assert [access.may("publish", "topic", "a") for access in (alone, more)] == [False, True]
    run_steps(policy.put_user(User(name="alice")))
    assert [access.may("consume", "topic", "a") for access in (alone, more)] == [False, False]
    assert more.may("publish", "topic", "a"), "the token has it until it ends"


def test_an_open_policy_allows_everything_and_an_administrator_no_name_of_the_brokers_own() -> None:
    assert Policy({}, Users(), is_open=True).access("anonymous").may("run", "broker")
    access = Policy({}, Users([User(name="root", roles=(ADMINISTRATOR,))])).access("root")
    assert all(
        access.may(operation, kind, "x") for kind in OPERATIONS if kind != "broker" for operation in OPERATIONS[kind]
    )
    assert not access.may("publish", "topic", "__audit")


@pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128, "a\0b", "a\nb", "a\u202eb", "\ud800"])
def test_wrong_names_of_users_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_user_name(name)


def test_a_certificate_names_one_user_or_none() -> None:
    users = Users([User(name="a", certificate="dns-a"), User(name="b", certificate="dns-b"), User(name="c", uid=7)])
    assert users.of_certificate(["x", "dns-a"]) == users.find("a")
    assert users.of_certificate(["dns-a", "dns-b"]) is None
    assert users.of_certificate([""]) is None
    assert (users.of_uid(7), users.of_uid(8)) == (users.find("c"), None)
