"""Cooperative scheduling of long CPU-bound work: in turns, one task at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from linn.core.batch.steps import TURN_S, Steps

TURNS_OF_OTHERS = 3
"""Turns of the loop between two turns of long work: small requests need many."""
TURNS_OF_OTHERS_MAX = 30
"""The same after a step that takes longer than a turn and can't be split."""
T = TypeVar("T")


async def yield_turns(monotonic: Callable[[], float], worked_s: float = TURN_S) -> None:
    """Let other tasks run for several turns after a turn of long work, or for the equivalent time if their turns are
    long.

    Cancellation: a checkpoint.
    """
    turns = int(worked_s / TURN_S) * TURNS_OF_OTHERS
    until_s = monotonic() + TURNS_OF_OTHERS * max(worked_s, TURN_S)
    for _ in range(min(max(turns, TURNS_OF_OTHERS), TURNS_OF_OTHERS_MAX)):
        await trio.lowlevel.checkpoint()
        if monotonic() >= until_s:
            return


class LongWork:
    """A scheduler of long CPU-bound work: one of its tasks has a turn at a time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.turn = trio.Lock()
        """Held by the next task to have a turn."""
        self.is_stopping = False
        """Whether the broker is stopping, so that other tasks need no turns."""

    def task(self, *, immediate: bool = False) -> LongTask:
        """Make the long work of a task; see `LongTask`."""
        return LongTask(self, immediate)

    async def run(self, steps: Steps[T], *, immediate: bool = False) -> T:
        """Run steps to their end, in turns. `immediate`: see `LongTask`. Cancellation: the steps end where they are."""
        return await LongTask(self, immediate).run(steps)


class LongTask:
    """The long work of one task, which calls `give_turn` before each step."""

    def __init__(self, work: LongWork, immediate: bool = False) -> None:
        """`immediate`: take the first turn now, because the callers themselves start only a few tasks at a time."""
        self._work = work
        self._monotonic = work.monotonic
        self._began_s = self._until_s = self._monotonic()
        if immediate:
            self._until_s += TURN_S

    async def give_turn(self) -> None:
        """Let other tasks run if this turn is over. Of the tasks with long work, one has a turn at a time.

        Other tasks get several turns for each turn of long work, or fewer if theirs are long. Once the broker stops,
        they need no turns.

        Cancellation: a checkpoint, if there is one.
        """
        now_s = self._monotonic()
        if now_s < self._until_s:
            return
        if self._work.is_stopping:
            await trio.lowlevel.checkpoint()
        else:
            async with self._work.turn:
                await yield_turns(self._monotonic, now_s - self._began_s)
        self._began_s = self._monotonic()
        self._until_s = self._began_s + TURN_S

    async def run(self, steps: Steps[T]) -> T:
        """Run steps to their end, a turn before each. Cancellation: the steps end where they are."""
        while True:
            await self.give_turn()
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
