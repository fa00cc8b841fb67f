"""Why something matched a message or did not: a tree of statements, for people and for programs.

An exchange may have a method `explain(subject, binding) -> Explanation`; `explain` asks it, and for an exchange that
has none says only whether the binding matched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from linn.core.routing.exchange import Binding, Exchange, Subject


@dataclass(frozen=True, slots=True)
class Explanation:
    """One statement about a message."""

    text: str
    """What was asked: `label.region = "eu"`."""
    truth: bool | None
    """Whether it is so; None: it can't be said, as of a field that is not there."""
    because: str = ""
    """What was found, in words for the end of a line; empty where `parts` say all of it."""
    parts: tuple[Explanation, ...] = ()
    """The statements that it is made of."""

    def decisive(self) -> Iterator[Explanation]:
        """The statements that say what made it true, or kept it from being true, in their order."""
        if self.because or not self.parts:
            yield self
            return
        # What is of the other kind did not matter, but for the operand of a `not`.
        same = [part for part in self.parts if (part.truth is True) is (self.truth is True)]
        for part in same or self.parts:
            yield from part.decisive()

    def nearness(self) -> float:
        """How much of it is true, from 0 to 1, to find what missed least. 1 where the whole is."""
        if self.truth is True or not self.parts:
            return float(self.truth is True)
        return sum(part.nearness() for part in self.parts) / (len(self.parts) + 1)

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        data: dict[str, Any] = {"text": self.text, "truth": self.truth}
        if self.because:
            data["because"] = self.because
        if self.parts:
            data["parts"] = [part.as_data() for part in self.parts]
        return data


@runtime_checkable
class Explaining(Protocol):
    """An exchange that can say why."""

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Why one of its bindings matches a subject or not. `truth` is True exactly where `match` holds the binding."""


def explain(exchange: Exchange, subject: Subject, binding: Binding) -> Explanation:
    """Why a binding matches a subject or not, as well as its exchange can say."""
    if isinstance(exchange, Explaining):
        return exchange.explain(subject, binding)
    matched = binding in exchange.match(subject)
    return Explanation(f"key {binding.key!r}", matched, "this type of exchange does not say why")
