"""Splitting of a large publish in turns, with its parts counted in the share `received`.

Laws: the parts of all publishes together exceed the share by those of one publish, and one part of each other: while it
is over, one publish continues, and the others wait with the parts that they have. The one that continues waits for none
of them, so there is no deadlock. Of all large publishes, however many there are, one has a turn between two turns of
all other tasks (`long_work`).
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

import trio

from linn.core.batch.steps import Steps
from linn.core.loop.long_work import LongTask
from linn.core.loop.memory_budget import ReceivedShare
from linn.core.routing.budget import PublishBudget

T = TypeVar("T")


class PartsMemory:
    """The parts of one attempt of a publish. Use it in a `with` statement, and drop the parts at its end."""

    def __init__(self, budget: PublishBudget, work: LongTask, share: ReceivedShare, parts_turn: trio.Lock) -> None:
        self._budget = budget
        self._work = work
        self._share = share
        self._parts_turn = parts_turn
        self._has_turn = False
        self._held_bytes = 0

    def __enter__(self) -> PartsMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._share.give_back(self._held_bytes)
        if self._has_turn:
            self._parts_turn.release()

    async def in_turns(self, steps: Steps[T]) -> T:
        """Run steps in turns and return their result. Cancellation: they end where they are."""
        while True:
            await self._work.give_turn()
            try:
                next(steps)
            except StopIteration as end:
                self._count()
                result: T = end.value
                return result
            self._count()
            if self._share.is_over and not self._has_turn:
                await self._parts_turn.acquire()
                self._has_turn = True

    def _count(self) -> None:
        more = self._budget.parts_bytes - self._held_bytes
        self._held_bytes += more
        self._share.used_bytes += more
