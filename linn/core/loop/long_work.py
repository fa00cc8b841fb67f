"""Cooperative scheduling of long CPU-bound work: in turns, one task of all at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from linn.core.batch.steps import TURN_S, Steps

TURNS_OF_OTHERS = 3
"""Turns of the loop for each of long work: small requests need many."""
TURNS_OF_OTHERS_MAX = 30
"""After a step that could not be made as short as a turn."""
T = TypeVar("T")


async def let_others_on(monotonic: Callable[[], float], worked_s: float = TURN_S) -> None:
    """Give others some turns for each of one's own, or the time of these where each of theirs is long.

    Cancellation: a checkpoint.
    """
    turns = int(worked_s / TURN_S) * TURNS_OF_OTHERS
    until_s = monotonic() + TURNS_OF_OTHERS * max(worked_s, TURN_S)
    for _ in range(min(max(turns, TURNS_OF_OTHERS), TURNS_OF_OTHERS_MAX)):
        await trio.lowlevel.checkpoint()
        if monotonic() >= until_s:
            return


class LongWork:
    """Cooperative scheduling of long CPU-bound work: of all tasks that have some, one has a turn at a time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.turn = trio.Lock()
        """Held by the task whose turn is next."""
        self.is_stopping = False
        """Whether nobody else has to be let on any more."""

    def task(self, *, immediate: bool = False) -> LongTask:
        """The long work of one task; see `LongTask`."""
        return LongTask(self, immediate)

    async def run(self, steps: Steps[T], *, immediate: bool = False) -> T:
        """Run steps to their end, in turns. `immediate`: see `LongTask`. Cancellation: they end where they are."""
        task = LongTask(self, immediate)
        while True:
            await task.give_turn()
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result


class LongTask:
    """The long work of one task, which calls `give_turn` before each step."""

    def __init__(self, work: LongWork, immediate: bool = False) -> None:
        """`immediate`: the first turn is now, because those who begin do so a few at a time."""
        self._work = work
        self._monotonic = work.monotonic
        self._began_s = self._until_s = self._monotonic()
        if immediate:
            self._until_s += TURN_S

    async def give_turn(self) -> None:
        """Where this turn is over, let others go on; between two turns of theirs one goes on of all that takes long.

        They have several turns for each, or the time of these: where each turn is long, that is less. Once the broker
        stops nobody has to be let on.

        Cancellation: a checkpoint, if there is one.
        """
        now_s = self._monotonic()
        if now_s < self._until_s:
            return
        if self._work.is_stopping:
            await trio.lowlevel.checkpoint()
        else:
            async with self._work.turn:
                await let_others_on(self._monotonic, now_s - self._began_s)
        self._began_s = self._monotonic()
        self._until_s = self._began_s + TURN_S
