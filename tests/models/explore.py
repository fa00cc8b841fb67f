"""Breadth-first exploration of every state that a model can reach, with the shortest trace to a violation.

A model is a state machine with hashable states. Each of its steps has a label; a label that begins with `FAULT` may
happen but need not, so a state in which only faults are possible is final: the system is at rest there, and everything
that it promises must have been kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

FAULT = "! "
"""Prefix of the labels of steps that no one is obliged to take: crashes, timeouts, an operator's commands."""
STATES_MAX = 300_000

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """State machine, with what must hold in each of its states."""

    def initial(self) -> S:
        """Return the state that everything begins with."""

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """Return each step that is possible in a state: its label, and the state after it."""

    def broken(self, state: S) -> str | None:
        """Name an invariant that does not hold in a state."""

    def unkept(self, state: S) -> str | None:
        """Name a promise that a final state does not keep."""


class Exploration(NamedTuple, Generic[S]):
    """Result of a search: the whole space, or the part before a violation or the bound."""

    states: int
    finals: int
    is_whole: bool
    """False where the bound or a violation ended the search."""
    violation: str | None
    trace: tuple[str, ...] = ()
    """Labels of a shortest way from the initial state to the violation."""
    state: S | None = None
    """The state that violates something."""

    def __str__(self) -> str:
        """The trace, one step per line."""
        lines = [f"{self.violation or 'nothing violated'} ({self.states} states, {self.finals} final)"]
        lines += [f"{number:>4} {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([*lines, *([] if self.state is None else [f"     {self.state}"])])


def explore(model: Model[S], states_max: int = STATES_MAX) -> Exploration[S]:
    """Visit the states of a model breadth first, up to the first violation or a number of states."""
    first = model.initial()
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    waiting = deque([first])
    finals, seen = 0, 1
    while waiting:
        state = waiting.popleft()
        violation = model.broken(state)
        is_final = True
        if violation is None:
            for label, after in model.steps(state):
                is_final = is_final and label.startswith(FAULT)
                came_from.setdefault(after, (state, label))
                if len(came_from) > seen:  # To look first would hash each new state twice.
                    seen += 1
                    waiting.append(after)
            if is_final:
                finals += 1
                violation = model.unkept(state)
        if violation is not None:
            return Exploration(len(came_from), finals, False, violation, _trace(came_from, state), state)
        if len(came_from) > states_max:
            return Exploration(len(came_from), finals, False, None)
    return Exploration(len(came_from), finals, True, None)


def _trace(came_from: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    labels = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return tuple(reversed(labels))
