"""The graph of a broker's exchanges; its edges are bindings between exchanges, and alternates.

Laws: the graph has no cycles, whatever the exchanges match; a change of any exchange's bindings makes a new `version`,
by which the routers know that their cached answers are stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from linn.core.errors.tree import BindingInvalid


class Node(Protocol):
    """An exchange as a node of the graph: a `Router`."""

    name: str
    alternate: str | None

    def exits(self) -> Iterable[str]:
        """The exchanges that a message may be passed on to, in a stable order."""


N = TypeVar("N", bound=Node)


def _no_time_passes() -> float:
    """The clock of a graph that is not used for routing."""
    return 0.0


class ExchangeGraph(Generic[N]):
    """Routers by name. Unknown names lead nowhere."""

    def __init__(self, monotonic: Callable[[], float] = _no_time_passes) -> None:
        """`monotonic` returns seconds, by which routers bound the time for one batch."""
        self.routers: dict[str, N] = {}
        self.monotonic = monotonic
        self.version = 0

    def changed(self) -> None:
        """Start a new version: a binding, an exchange or a topic was added or removed."""
        self.version += 1

    def check_link(self, source: str, target: str) -> None:
        """Check that `source` may lead to `target`.

        Raises BindingInvalid: it would close a cycle. Exchanges between the two are not for every client to see.
        """
        way = way_between(target, source, self._exits)
        if way is not None:
            raise BindingInvalid(circle_text([source, *(way if len(way) < 3 else [target, "...", source])]))

    def reached_from(self, router: N) -> list[N]:
        """The router itself and all that its messages may reach, nearest first."""
        found = {router.name: router}
        for each in (waiting := [router]):
            for name in each.exits():
                there = self.routers.get(name)
                if there is not None and name not in found:
                    found[name] = there
                    waiting.append(there)
        return waiting

    def alternate_of(self, name: str) -> list[str]:
        """The exchanges that have `name` as their alternate."""
        return sorted(router.name for router in self.routers.values() if router.alternate == name)

    def _exits(self, name: str) -> Iterable[str]:
        router = self.routers.get(name)
        return router.exits() if router is not None else ()


def way_between(start: str, end: str, exits: Callable[[str], Iterable[str]]) -> list[str] | None:
    """A shortest path from `start` to `end`, both included; None if there is none."""
    came_from: dict[str, str] = {start: start}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        if place == end:
            way = [place]
            while way[-1] != start:
                way.append(came_from[way[-1]])
            return way[::-1]
        for there in exits(place):
            if there not in came_from:
                came_from[there] = place
                waiting.append(there)
    return None


NAMED_MAX = 10
"""Exchanges named of a longer cycle: enough to find it."""


def circle_text(names: list[str]) -> str:
    """The error text for a cycle, given with its first name again at its end."""
    shown = names if len(names) <= NAMED_MAX else [*names[: NAMED_MAX - 1], "...", names[-1]]
    return f"exchanges would lead in a circle: {' -> '.join(shown)}"
