"""Random predicates and messages that have something to do with one another, and a slow reading of the language."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import strategies as st

from linn.core.routing.exchange import Subject
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
)
from linn.core.routing.subject_field import SubjectField

NAMES = st.sampled_from(["a", "b", "region", "content-type", "http.status", "2xx", "with space", 'quo"te', "", "größe"])
LABELS = st.builds(SubjectField, st.just("label"), NAMES)
HEADERS = st.builds(SubjectField, st.just("header"), NAMES)
TEXT_FIELDS = HEADERS | st.sampled_from([SubjectField("key"), SubjectField("routing_key")])
SIZE = st.just(SubjectField("size"))

TEXTS = st.sampled_from(["", "a", "b", "eu", "eu-1", "1", "true", "ß", "\U0001f600"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 0.5, 3.0, 1e300, 5e-324, 2.0**53]) | st.floats(
    allow_nan=False, allow_infinity=False
)
NUMBERS = st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1) | FLOATS

ORDERED = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
EQUAL = st.sampled_from(["=", "!="])


def _tests() -> st.SearchStrategy[Node]:
    fields_and_values = [(LABELS, TEXTS), (LABELS, NUMBERS), (TEXT_FIELDS, TEXTS), (SIZE, NUMBERS)]
    found: list[st.SearchStrategy[Node]] = [
        st.builds(Comparison, fields, ORDERED, values) for fields, values in fields_and_values
    ]
    found.append(st.builds(Comparison, LABELS, EQUAL, st.booleans()))
    for fields, values in [*fields_and_values, (LABELS, st.booleans())]:
        found.append(st.builds(Membership, fields, st.lists(values, min_size=1, max_size=4).map(tuple)))
    affixes = st.sampled_from(["starts_with", "ends_with"])
    found.append(st.builds(Affix, LABELS | TEXT_FIELDS, affixes, TEXTS))
    found.append(st.builds(Presence, LABELS | TEXT_FIELDS | SIZE))
    found.append(st.builds(Constant, st.booleans()))
    return st.one_of(found)


def _chains(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    operands = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.builds(And, operands) | st.builds(Or, operands) | st.builds(Not, inner)


TREES: st.SearchStrategy[Node] = st.recursive(_tests(), _chains, max_leaves=12)

LABEL_VALUES = TEXTS | NUMBERS | st.booleans() | st.sampled_from([math.nan, math.inf, -math.inf])
CONTENTS = TEXTS.map(str.encode) | st.binary(max_size=4)
SUBJECTS: st.SearchStrategy[Subject] = st.builds(
    Subject,
    TEXTS,
    st.dictionaries(NAMES, LABEL_VALUES, max_size=5),
    st.none() | CONTENTS,
    st.dictionaries(NAMES, CONTENTS, max_size=3),
    st.integers(0, 4),
)


def exact(node: Node) -> str:
    """A tree with the types of its literals, which == does not tell apart."""
    return repr(node)


# --- the language, read aloud ----------------------------------------------------------------------------------------


def naive_truth(node: Node, subject: Subject) -> bool | None:
    """Evaluate a predicate as docs/reference/predicates.md says, one sentence after the other."""
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Not):
        inner = naive_truth(node.operand, subject)
        return None if inner is None else not inner
    if isinstance(node, And):
        truths = [naive_truth(operand, subject) for operand in node.operands]
        return False if False in truths else None if None in truths else True
    if isinstance(node, Or):
        truths = [naive_truth(operand, subject) for operand in node.operands]
        return True if True in truths else None if None in truths else False
    value = naive_value(node.field, subject)
    if isinstance(node, Presence):
        return value is not None
    if isinstance(node, Membership):
        return naive_truth(Or(tuple(Comparison(node.field, "=", each) for each in node.values)), subject)
    if isinstance(node, Affix):
        wanted, found = node.text.encode(), _utf8(value)
        if found is None:
            return None
        part = found[: len(wanted)] if node.operator == "starts_with" else found[max(0, len(found) - len(wanted)) :]
        return part == wanted
    order = naive_order(value, node.value)
    if order is None:
        return None
    return {"=": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[
        node.operator
    ]


def naive_value(field: SubjectField, subject: Subject) -> object:
    if field.kind == "label":
        return subject.labels.get(field.name)
    if field.kind == "header":
        return subject.headers.get(field.name)
    return {"key": subject.key, "routing_key": subject.routing_key, "size": subject.size}[field.kind]


def naive_order(value: object, literal: LiteralValue) -> int | None:
    """-1, 0 or 1; None where the two can't be compared."""
    if isinstance(literal, str):
        # UTF-8 keeps the order of code points.
        found, wanted = _utf8(value), literal.encode()
        return None if found is None else (found > wanted) - (found < wanted)
    if isinstance(literal, bool) or isinstance(value, bool):
        both = isinstance(literal, bool) and isinstance(value, bool)
        return int(value is not literal) if both else None
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    if math.isinf(value):
        return 1 if value > 0 else -1
    return (Fraction(value) > Fraction(literal)) - (Fraction(value) < Fraction(literal))


def _utf8(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None
