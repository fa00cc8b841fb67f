"""Trace of one message through exchanges: the bindings that match at each, and the reasons why others do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linn.cli.routing.route_map import RouteMap
from linn.core.routing.binding_table import identity_of
from linn.core.routing.exchange import Binding, Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.router import Router


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Binding that was evaluated, and the explanation of the result."""

    binding: Binding
    matched: bool
    explanation: Explanation

    def as_data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        target = self.binding.target
        return {
            "to": "exchange" if target.is_exchange else "topic",
            "target": target.name,
            "key": self.binding.key,
            "arguments": dict(self.binding.arguments),
            "matched": self.matched,
            "because": [part.because for part in self.explanation.decisive() if part.because],
            "explanation": self.explanation.as_data(),
        }


@dataclass(frozen=True, slots=True)
class Step:
    """Exchange on the way."""

    exchange: str
    kind: str
    reached: str
    """Link by which the message came here, in words."""
    evaluations: tuple[Evaluation, ...]
    """Matches in the order of the bindings, then the nearest misses."""
    others: int
    """Number of further bindings that do not match."""
    alternate: str | None
    """Alternate that the message is passed to, because nothing matched."""

    def as_data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return {
            "exchange": self.exchange,
            "type": self.kind,
            "reached": self.reached,
            "bindings": [evaluation.as_data() for evaluation in self.evaluations],
            "others": self.others,
            "alternate": self.alternate,
        }


@dataclass(frozen=True, slots=True)
class Trace:
    """Complete trace, and the topics that the message is routed to."""

    steps: tuple[Step, ...]
    topics: tuple[str, ...]


def trace_of(routes: RouteMap, exchange: str, subject: Subject, *, misses_max: int) -> Trace:
    """Trace a message that is published to an exchange: nearest exchanges first, each evaluated once.

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
        for evaluation in step.evaluations:
            target = evaluation.binding.target
            if not evaluation.matched:
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
    # As in the broker, an exchange gets the content of a message only if it asks for it.
    shown = subject if router.look_for_fields() else Subject(subject.routing_key, subject.labels)
    matched = router.match(shown)
    taken = {identity_of(binding) for binding in matched}
    hits = [Evaluation(binding, True, router.explain(shown, binding)) for binding in matched]
    misses = [
        Evaluation(binding, False, router.explain(shown, binding))
        for binding in router.bindings()
        if identity_of(binding) not in taken
    ]
    misses.sort(key=lambda evaluation: -evaluation.explanation.nearness())
    evaluations = (*hits, *misses[:misses_max])
    alternate = None if matched else router.alternate
    return Step(router.name, router.kind, reached, evaluations, len(misses) - len(misses[:misses_max]), alternate)
