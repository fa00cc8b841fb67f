"""All exchanges of a broker, and what leads from one to another: bindings between them, and alternates.

Laws: nothing leads in a circle, whatever the exchanges match; a change of any exchange's bindings makes a new
`version`, by which the routers know that their answers are old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from linn.core.errors.tree import BindingInvalid

if TYPE_CHECKING:
    from linn.core.routing.router import Router


def _no_time_passes() -> float:
    """Of a graph that is only looked at."""
    return 0.0


class ExchangeGraph:
    """Routers by name. What is not among them leads nowhere."""

    def __init__(self, monotonic: Callable[[], float] = _no_time_passes) -> None:
        """`monotonic`: seconds, by which routers bound the time that one batch takes."""
        self.routers: dict[str, Router] = {}
        self.monotonic = monotonic
        self.version = 0

    def changed(self) -> None:
        """A binding, an exchange or a topic came or went."""
        self.version += 1

    def check_link(self, source: str, target: str) -> None:
        """Whether `source` may lead to `target`. Raises BindingInvalid, which names the circle that it would close."""
        way = way_between(target, source, self._exits)
        if way is not None:
            raise BindingInvalid(circle_text([source, *way]))

    def reached_from(self, router: Router) -> list[Router]:
        """The router itself and all that messages to it may come to, nearest first."""
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
    """A shortest way from `start` to `end`, both included; None where there is none."""
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
"""Of a longer circle the first exchanges are named: enough to find it."""


def circle_text(names: list[str]) -> str:
    """What is wrong with a circle, given with its first name again at its end."""
    shown = names if len(names) <= NAMED_MAX else [*names[: NAMED_MAX - 1], "...", names[-1]]
    return f"exchanges would lead in a circle: {' -> '.join(shown)}"
