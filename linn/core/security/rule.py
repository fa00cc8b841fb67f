"""Rules of roles: which operations are allowed on which resources.

A rule names one resource, or all that begin with a prefix: `topic:orders.new`, `topic:orders.*`, `topic:*`, `broker`.
There are no other patterns, no variables and no rules that deny: all of a user's rules together are what the user may
do. Names that begin with `__` are the broker's own, and no prefix reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ConfigError
from linn.rights import BROKER, OPERATIONS, SEE

RESOURCE_CHARACTERS_MAX = 512
"""Limit of a rule's resource: no name of a topic, group or transaction is longer."""
RULES_MAX = 10_000
"""Limit of the rules of one role: with longest names they take 10 MiB."""
OWN_PREFIX = "__"


class Rule(NamedTuple):
    """Operations on one resource, or on all whose names begin with a prefix."""

    kind: str
    name: str
    is_prefix: bool
    operations: frozenset[str]


def rules_of(table: Mapping[str, object]) -> tuple[Rule, ...]:
    """Read the rules of a role, written as `{"topic:orders.*": ["see", "publish"]}`. Raises ConfigError."""
    if len(table) > RULES_MAX:
        raise ConfigError(f"a role has at most {RULES_MAX} rules")
    return tuple(_rule(resource, operations) for resource, operations in table.items())


def described_rules(rules: Iterable[Rule]) -> dict[str, list[str]]:
    """Write rules as `rules_of` reads them."""
    found = {}
    for kind, name, is_prefix, operations in rules:
        resource = BROKER if kind == BROKER else f"{kind}:{name}{'*' * is_prefix}"
        found[resource] = [operation for operation in OPERATIONS[kind] if operation in operations]
    return found


def _rule(resource: str, asked: object) -> Rule:
    shown = resource[:80]
    if not isinstance(asked, list | tuple) or not all(isinstance(operation, str) for operation in asked):
        raise ConfigError(f'the operations of "{shown}" must be an array of texts')
    if len(resource) > RESOURCE_CHARACTERS_MAX:
        raise ConfigError(f'the resource "{shown}..." has more than {RESOURCE_CHARACTERS_MAX} characters')
    kind, colon, name = resource.partition(":")
    if kind not in OPERATIONS:
        raise ConfigError(
            f'"{shown}" names no kind of resource: {", ".join(OPERATIONS)}{did_you_mean(kind, OPERATIONS)}'
        )
    if kind == BROKER and colon:
        raise ConfigError(f'"{shown}": there is one broker, without a name: write "broker"')
    if kind != BROKER and not name:
        raise ConfigError(f'"{shown}" names no {kind}: write "{kind}:NAME", "{kind}:PREFIX*" or "{kind}:*"')
    if "*" in name[:-1]:
        raise ConfigError(f'"{shown}": a * stands at the end, and stands for any rest of the name')
    known = OPERATIONS[kind]
    for operation in asked:
        if operation not in known:
            meant = ", ".join(known) + did_you_mean(operation, known)
            raise ConfigError(f'"{shown}": there is no operation "{operation[:80]}" on a {kind}: {meant}')
    if not asked:
        raise ConfigError(f'"{shown}" allows nothing: name operations: {", ".join(known)}')
    return Rule(kind, name.removesuffix("*"), name.endswith("*"), frozenset({*asked, SEE}))


ALL_RULES = (
    *[Rule(kind, "", True, frozenset(OPERATIONS[kind])) for kind in OPERATIONS if kind != BROKER],
    Rule(BROKER, "", False, frozenset(OPERATIONS[BROKER])),
)
"""The rules of the role `administrator`."""
