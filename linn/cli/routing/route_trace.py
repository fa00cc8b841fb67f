"""The way of one message through exchanges: what each was asked, what matched, and why the rest did not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linn.cli.routing.route_map import RouteMap
from linn.core.routing.binding_table import identity_of
from linn.core.routing.exchange import Binding, Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.router import Router


@dataclass(frozen=True, slots=True)
class Judged:
    """One binding of an exchange that was asked."""

    binding: Binding
    matched: bool
    explanation: Explanation

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        target = self.binding.target
        return {
            "to": "exchange" if target.is_exchange else "topic",
            "target": target.name,
            "key": self.binding.key,
            "arguments": dict(self.binding.arguments),
            "matched": self.matched,
            "because": [said.because for said in self.explanation.decisive() if said.because],
            "explanation": self.explanation.as_data(),
        }


@dataclass(frozen=True, slots=True)
class Step:
    """One exchange on the way."""

    exchange: str
    kind: str
    reached: str
    """How the message came there, in words."""
    judged: tuple[Judged, ...]
    """All that matched in the order of the bindings; then the nearest of the others."""
    others: int
    """How many more do not match."""
    alternate: str | None
    """Where the message goes on to, because nothing matched."""

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "exchange": self.exchange,
            "type": self.kind,
            "reached": self.reached,
            "bindings": [judged.as_data() for judged in self.judged],
            "others": self.others,
            "alternate": self.alternate,
        }


@dataclass(frozen=True, slots=True)
class Trace:
    """The whole way."""

    steps: tuple[Step, ...]
    topics: tuple[str, ...]


def trace_of(routes: RouteMap, exchange: str, subject: Subject, *, misses_max: int) -> Trace:
    """Where a message goes that is published to an exchange: nearest exchanges first, each asked once.

    Raises:
        ExchangeUnknown: there is no such exchange. LinnError: an exchange failed.
    """
    topics: dict[str, None] = {}
    steps: list[Step] = []
    reached = {exchange: "published to"}
    for name in (waiting := [exchange]):
        router = routes.router(name)
        step = _step(router, subject, reached[name], misses_max)
        steps.append(step)
        onward = {step.alternate: f"the alternate of {name}"} if step.alternate is not None else {}
        for judged in step.judged:
            target = judged.binding.target
            if not judged.matched:
                continue
            if target.is_exchange:
                onward[target.name] = f"bound to {name}"
            else:
                topics[target.name] = None
        for there, how in onward.items():
            if there not in reached:
                reached[there] = how
                waiting.append(there)
    return Trace(tuple(steps), tuple(topics))


def _step(router: Router, subject: Subject, reached: str, misses_max: int) -> Step:
    # As in the broker: an exchange sees content only where it asks for some.
    shown = subject if router.look_for_fields() else Subject(subject.routing_key, subject.labels)
    matched = router.match(shown)
    taken = {identity_of(binding) for binding in matched}
    hits = [Judged(binding, True, router.explain(shown, binding)) for binding in matched]
    misses = [
        Judged(binding, False, router.explain(shown, binding))
        for binding in router.bindings()
        if identity_of(binding) not in taken
    ]
    misses.sort(key=lambda judged: -judged.explanation.nearness())
    judged = (*hits, *misses[:misses_max])
    alternate = None if matched else router.alternate
    return Step(router.name, router.kind, reached, judged, len(misses) - len(misses[:misses_max]), alternate)
