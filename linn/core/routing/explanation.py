"""Explanations of why a binding matched a message or did not: trees of statements, for people and for programs.

An exchange may have a method `explain(subject, binding) -> Explanation`; for an exchange without it, `explain` says
only whether the binding matched.
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
    """The tested condition: `label.region = "eu"`."""
    truth: bool | None
    """Whether it is true; None: unknown, for example because the field is missing."""
    because: str = ""
    """The finding, worded as the end of a line; empty if `parts` say all of it."""
    parts: tuple[Explanation, ...] = ()
    """The statements that it consists of."""

    def decisive(self) -> Iterator[Explanation]:
        """The statements that made it true, or kept it from being true, in order."""
        if self.because or not self.parts:
            yield self
            return
        # What is of the other kind did not matter, but for the operand of a `not`.
        same = [part for part in self.parts if (part.truth is True) is (self.truth is True)]
        for part in same or self.parts:
            yield from part.decisive()

    def nearness(self) -> float:
        """The fraction of it that is true, from 0 to 1, to find the nearest miss. 1 if all of it is."""
        if self.truth is True or not self.parts:
            return float(self.truth is True)
        return sum(part.nearness() for part in self.parts) / (len(self.parts) + 1)

    def as_data(self) -> dict[str, Any]:
        """The explanation as JSON."""
        data: dict[str, Any] = {"text": self.text, "truth": self.truth}
        if self.because:
            data["because"] = self.because
        if self.parts:
            data["parts"] = [part.as_data() for part in self.parts]
        return data


@runtime_checkable
class Explaining(Protocol):
    """An exchange that can explain its matches."""

    def explain(self, subject: Subject, binding: Binding) -> Explanation:
        """Explain why one of its bindings matches a subject or not. `truth` is True exactly if `match` has the
        binding.
        """


def explain(exchange: Exchange, subject: Subject, binding: Binding) -> Explanation:
    """Explain why a binding matches a subject or not, as well as its exchange can."""
    if isinstance(exchange, Explaining):
        return exchange.explain(subject, binding)
    matched = binding in exchange.match(subject)
    return Explanation(f"key {binding.key!r}", matched, "this type of exchange does not say why")
