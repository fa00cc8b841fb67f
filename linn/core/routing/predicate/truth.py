"""Evaluation of predicates: a tree, compiled once into closures.

Logic is three-valued, as in SQL and JMS: true, false, and None for unknown. A test is unknown if the message has no
such field, or has it with a type that can't be compared with the literal (a NaN can be compared with nothing); `exists`
is always known. `not` of unknown is unknown; `and` is false if one operand is false; `or` is true if one is true. So
`not a = 1` is always the same as `a != 1`.

Laws: pure, total, and bounded by the size of the tree; no literal and no field makes it raise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from linn.core.routing.exchange import Subject
from linn.core.routing.predicate.tree import Affix, And, Comparison, Constant, Membership, Node, Not, Or, Presence

Truth: TypeAlias = bool | None
Truths: TypeAlias = Callable[[Subject], Truth]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS = (int, float)


def truth_of(node: Node) -> Truths:
    """Compile a tree to a function of a message."""
    match node:
        case Constant(value):
            return lambda subject: value
        case Comparison():
            return _comparison(node)
        case Membership():
            return _membership(node)
        case Affix():
            return _affix(node)
        case Presence(field):
            read = field.reader()
            return lambda subject: read(subject) is not None
        case Not(operand):
            return _negation(truth_of(operand))
        case And(operands):
            return _chain([truth_of(operand) for operand in operands], decides=False)
        case Or(operands):
            return _chain([truth_of(operand) for operand in operands], decides=True)


def comparable_types(value: object) -> tuple[type, ...]:
    """The types whose values can be compared with a literal; a bool is no number."""
    return _NUMBERS if type(value) in _NUMBERS else (type(value),)


def _comparison(test: Comparison) -> Truths:
    read, compare = test.field.reader(), _COMPARE[test.operator]
    wanted: Any = test.field.as_read(test.value)
    types = comparable_types(wanted)

    def truth(subject: Subject) -> Truth:
        value = read(subject)
        return compare(value, wanted) if type(value) in types and value == value else None

    return truth


def _membership(test: Membership) -> Truths:
    read = test.field.reader()
    wanted = frozenset(map(test.field.as_read, test.values))
    types = comparable_types(test.field.as_read(test.values[0]))

    def truth(subject: Subject) -> Truth:
        value = read(subject)
        return value in wanted if type(value) in types and value == value else None

    return truth


def _affix(test: Affix) -> Truths:
    read, at_start = test.field.reader(), test.operator == "starts_with"
    wanted: Any = test.field.as_read(test.text)
    kind = type(wanted)

    def truth(subject: Subject) -> Truth:
        value: Any = read(subject)
        if type(value) is not kind:
            return None
        found: bool = value.startswith(wanted) if at_start else value.endswith(wanted)
        return found

    return truth


def _negation(operand: Truths) -> Truths:
    def truth(subject: Subject) -> Truth:
        found = operand(subject)
        return None if found is None else not found

    return truth


def _chain(operands: list[Truths], *, decides: bool) -> Truths:
    """`and` (False decides) or `or` (True decides)."""

    def truth(subject: Subject) -> Truth:
        result: Truth = not decides
        for operand in operands:
            found = operand(subject)
            if found is decides:
                return decides
            if found is None:
                result = None
        return result

    return truth
