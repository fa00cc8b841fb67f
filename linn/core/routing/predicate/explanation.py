"""Explanations of predicates: each part with its truth, and the message's value."""

from __future__ import annotations

from linn.core.routing.exchange import Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.predicate.tree import (
    Affix,
    And,
    Comparison,
    Constant,
    LiteralValue,
    Membership,
    Node,
    Not,
    Or,
    Presence,
    Test,
    literal_text,
)
from linn.core.routing.predicate.truth import comparable_types, truth_of
from linn.core.routing.subject_field import FieldValue, quoted

_SHOWN_CHARACTERS = 60
"""Longest value that is shown, so that a line stays a line."""


def explain_tree(node: Node, subject: Subject) -> Explanation:
    """Explain a tree for a message, part by part."""
    truth, text = truth_of(node)(subject), str(node)
    match node:
        case Constant():
            return Explanation(text, truth, "always")
        case Not(operand):
            return Explanation(text, truth, parts=(explain_tree(operand, subject),))
        case And(operands) | Or(operands):
            return Explanation(text, truth, parts=tuple(explain_tree(operand, subject) for operand in operands))
        case _:
            return Explanation(text, truth, _found(node, subject))


def shown_value(value: FieldValue) -> str:
    """A value in a predicate's notation, shortened if it is long; bytes that are not UTF-8 in Python's notation."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            text = repr(value)
            return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        return quoted(value[:_SHOWN_CHARACTERS]) + "..."
    return literal_text(value)


def _found(test: Test, subject: Subject) -> str:
    """The message's value of the field that a test examines, as text."""
    value = test.field.reader()(subject)
    if value is None:
        return f"there is no {test.field}"
    found = f"{test.field} is {shown_value(value)}"
    literal = _literal_of(test)
    if literal is not None and type(value) not in comparable_types(test.field.as_read(literal)):
        return f"{found}, which can't be compared with {literal_text(literal)}"
    return found


def _literal_of(test: Test) -> LiteralValue | None:
    """A literal of the type that the test compares with."""
    match test:
        case Comparison(_, _, value):
            return value
        case Membership(_, values):
            return values[0]
        case Affix(_, _, text):
            return text
        case Presence():
            return None
