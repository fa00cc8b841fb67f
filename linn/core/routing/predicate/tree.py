"""The syntax tree of a predicate; `str` writes it as text that parses to an equal tree.

Parsers and exchanges build it, `predicate_truth` evaluates it, `predicate_explanation` explains it. Law: a tree from
the parser is well typed, so that nothing downstream can raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from linn.core.routing.subject_field import SubjectField, quoted

LiteralValue = str | int | float | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
AffixOperator = Literal["starts_with", "ends_with"]


@dataclass(frozen=True, slots=True)
class Constant:
    """`true` or `false`."""

    value: bool

    def __str__(self) -> str:
        return literal_text(self.value)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`size >= 1000`"""

    field: SubjectField
    operator: Operator
    value: LiteralValue

    def __str__(self) -> str:
        return f"{self.field} {self.operator} {literal_text(self.value)}"


@dataclass(frozen=True, slots=True)
class Membership:
    """`label.region in ("eu", "us")`"""

    field: SubjectField
    values: tuple[LiteralValue, ...]
    """The literals, at least one; all text, all numbers, or all true and false."""

    def __str__(self) -> str:
        return f"{self.field} in ({', '.join(map(literal_text, self.values))})"


@dataclass(frozen=True, slots=True)
class Affix:
    """`key starts_with "eu-"`"""

    field: SubjectField
    operator: AffixOperator
    text: str

    def __str__(self) -> str:
        return f"{self.field} {self.operator} {quoted(self.text)}"


@dataclass(frozen=True, slots=True)
class Presence:
    """`label.region exists`"""

    field: SubjectField

    def __str__(self) -> str:
        return f"{self.field} exists"


@dataclass(frozen=True, slots=True)
class Not:
    """`not key exists`"""

    operand: Node

    def __str__(self) -> str:
        return f"not {_within(self.operand, (And, Or))}"


@dataclass(frozen=True, slots=True)
class And:
    """Operands with `and` between them."""

    operands: tuple[Node, ...]
    """The operands, at least two."""

    def __str__(self) -> str:
        return " and ".join(_within(operand, (And, Or)) for operand in self.operands)


@dataclass(frozen=True, slots=True)
class Or:
    """Operands with `or` between them."""

    operands: tuple[Node, ...]
    """The operands, at least two."""

    def __str__(self) -> str:
        return " or ".join(_within(operand, (Or,)) for operand in self.operands)


Test = Comparison | Membership | Affix | Presence
Node = Constant | Test | Not | And | Or


def literal_text(value: LiteralValue) -> str:
    """A value in a predicate's notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(value)


def _within(node: Node, looser: tuple[type[Node], ...]) -> str:
    return f"({node})" if isinstance(node, looser) else str(node)


def fields_of(node: Node) -> dict[SubjectField, None]:
    """The fields that a tree reads, each once, in the order of the text."""
    match node:
        case Constant():
            return {}
        case Not(operand):
            return fields_of(operand)
        case And(operands) | Or(operands):
            return {field: None for operand in operands for field in fields_of(operand)}
        case _:
            return {node.field: None}


Demand = tuple[SubjectField, LiteralValue]


def demands_of(node: Node) -> tuple[Demand, ...] | None:
    """(field, value) pairs of which every message that makes the tree true has at least one.

    An index can find a predicate by them. None if no such pairs are known; empty if the tree is never true.
    """
    match node:
        case Constant(value):
            return None if value else ()
        case Comparison(field, "=", value):
            return ((field, value),)
        case Membership(field, values):
            return tuple((field, value) for value in values)
        case And(operands):
            known = [demands for operand in operands if (demands := demands_of(operand)) is not None]
            return min(known, key=len, default=None)
        case Or(operands):
            each = [demands_of(operand) for operand in operands]
            return None if None in each else tuple(pair for pairs in each for pair in pairs or ())
        case _:
            return None
