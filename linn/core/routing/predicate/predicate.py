"""Predicates over messages: `label.region = "eu" and not header.kind starts_with "test"`.

Used by exchanges that route by content, and by tools that select messages. `predicate_parser` holds the grammar and the
limits, `predicate_truth` the evaluation; `docs/reference/predicates.md` is the page for users.
"""

from __future__ import annotations

from linn.core.routing.exchange import Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.predicate.explanation import explain_tree
from linn.core.routing.predicate.parser import parse_tree
from linn.core.routing.predicate.tree import Demand, Node, demands_of, fields_of
from linn.core.routing.predicate.truth import Truths, truth_of


class Predicate:
    """A predicate, compiled on first use. Immutable; two are equal if their trees are."""

    __slots__ = ("_truth", "tree")

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self._truth: Truths | None = None

    @classmethod
    def parse(cls, text: str) -> Predicate:
        """Parse a predicate. Raises PredicateInvalid, which shows the position in the text."""
        return cls(parse_tree(text))

    def matches(self, subject: Subject) -> bool:
        """Whether it is true of a message; false and unknown are False. Pure, total, in bounded time."""
        truth = self._truth
        if truth is None:
            # Not before: most bindings of a large exchange are checked and bound long before they are asked.
            truth = self._truth = truth_of(self.tree)
        return truth(subject) is True

    def fields(self) -> frozenset[str]:
        """The fields that it reads beyond routing key and labels, as the exchange port names them."""
        return frozenset(field.asks for field in fields_of(self.tree) if field.asks is not None)

    def demands(self) -> tuple[Demand, ...] | None:
        """(field, value) pairs of which every matching message has at least one, for an index.

        None if there are no such pairs; empty if it never matches.
        """
        return demands_of(self.tree)

    def explain(self, subject: Subject) -> Explanation:
        """Explain which parts are true of a message and which are not, with the message's values."""
        return explain_tree(self.tree, subject)

    def __str__(self) -> str:
        return str(self.tree)

    def __repr__(self) -> str:
        return f"<Predicate {self}>"

    def __eq__(self, other: object) -> bool:
        return self.tree == other.tree if isinstance(other, Predicate) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.tree)
