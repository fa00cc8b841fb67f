"""The headers exchange of AMQP, over labels and headers: a binding lists values, and all or any of them must match.

    match = "all"
    labels = { format = "pdf", pages = 3 }
    headers = { "content-type" = "application/pdf" }
    exists = ["label.urgent", "header.trace-id"]

The arguments are converted to a predicate. RabbitMQ ignores names that begin with "x-" in `all` and `any`. linn refuses
them there, so that no condition of a binding is ignored silently; `all-with-x` and `any-with-x` accept every name, as
in RabbitMQ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from linn.api import (
    NODES_MAX,
    And,
    Binding,
    BindingInvalid,
    Comparison,
    Constant,
    ExchangeKind,
    LiteralValue,
    Node,
    Or,
    Predicate,
    Presence,
    SubjectField,
    did_you_mean,
    hookimpl,
    is_unicode,
    parse_field,
)
from linn.plugins.predicate_exchange import PredicateExchange

_ARGUMENTS = ("match", "labels", "headers", "exists")
_MATCHES = ("all", "any", "all-with-x", "any-with-x")
_INT64 = range(-(1 << 63), 1 << 63)


class HeadersSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a headers exchange: none besides its type."""


class HeadersExchange(PredicateExchange):
    """An exchange whose bindings match messages that have all, or any, of the listed values."""

    def predicate_of(self, binding: Binding) -> Predicate:
        """The predicate for a binding's arguments. Raises BindingInvalid."""
        for name in binding.arguments:
            if name not in _ARGUMENTS:
                raise BindingInvalid(f'unknown key "{name[:40]}"{did_you_mean(name, _ARGUMENTS)}', name)
        if binding.key:
            raise BindingInvalid("a headers exchange routes by labels and headers, and takes no key", "key")
        match = _match_of(binding.arguments)
        tests = _tests_of(binding.arguments)
        if len(tests) >= NODES_MAX:
            raise BindingInvalid(f"{len(tests)} values in one binding, more than {NODES_MAX - 1}")
        if not match.endswith("-with-x"):
            _refuse_x(tests, match)
        if len(tests) == 1:
            return Predicate(tests[0])
        if match.startswith("any"):
            if not tests:
                raise BindingInvalid(f'match = "{match}" without values is never true', "match")
            return Predicate(Or(tuple(tests)))
        # As in AMQP: a binding without conditions matches everything.
        return Predicate(And(tuple(tests)) if tests else Constant(True))


def _match_of(arguments: Mapping[str, Any]) -> str:
    match = arguments.get("match", "all")
    if match not in _MATCHES:
        raise BindingInvalid(f"must be one of {', '.join(_MATCHES)}, not {match!r:.40}", "match")
    return str(match)


def _tests_of(arguments: Mapping[str, Any]) -> list[Node]:
    """Make one test for each value and each field listed by the binding."""
    tests: list[Node] = []
    for name, value in _table(arguments, "labels").items():
        tests.append(Comparison(SubjectField("label", name), "=", _label(name, value)))
    for name, value in _table(arguments, "headers").items():
        if not isinstance(value, str) or not is_unicode(value):
            raise BindingInvalid(
                f"header {name[:40]} must be text, not {value!r:.40}; numbers are carried by labels", "headers"
            )
        tests.append(Comparison(SubjectField("header", name), "=", value))
    return tests + [Presence(field) for field in _fields(arguments)]


def _table(arguments: Mapping[str, Any], key: Literal["labels", "headers"]) -> Mapping[str, Any]:
    table = arguments.get(key, {})
    if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table):
        raise BindingInvalid("must be a table of names and values", key)
    return table


def _label(name: str, value: object) -> LiteralValue:
    wrong = "labels"
    if not isinstance(value, str | int | float | bool):
        raise BindingInvalid(f"label {name[:40]} must be text, a number, true or false, not {value!r:.40}", wrong)
    if isinstance(value, str) and not is_unicode(value):
        raise BindingInvalid(f"label {name[:40]} is not valid Unicode", wrong)
    if isinstance(value, float) and not math.isfinite(value):
        raise BindingInvalid(f"label {name[:40]} must be a finite number, not {value}", wrong)
    if isinstance(value, int) and value not in _INT64:
        raise BindingInvalid(f"label {name[:40]} does not fit into 64 bits", wrong)
    return value


def _fields(arguments: Mapping[str, Any]) -> list[SubjectField]:
    texts = arguments.get("exists", [])
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise BindingInvalid('must be an array of fields: ["label.NAME", "header.NAME"]', "exists")
    try:
        return [parse_field(text) for text in texts]
    except BindingInvalid as error:
        raise BindingInvalid(error.text, "exists") from None


def _refuse_x(tests: list[Node], match: str) -> None:
    """Refuse names that begin with "x-". Raises BindingInvalid."""
    for test in tests:
        assert isinstance(test, Comparison | Presence)
        if test.field.name.startswith("x-"):
            way_out = f'RabbitMQ leaves it out of match = "{match}"; match = "{match}-with-x" counts it'
            raise BindingInvalid(f"{test.field} begins with x-: {way_out}", "match")


@hookimpl
def linn_register_exchange() -> ExchangeKind:
    """Register `type = "headers"`."""
    return ExchangeKind("headers", HeadersSettings, HeadersExchange)
