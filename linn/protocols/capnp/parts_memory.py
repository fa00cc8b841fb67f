"""A large publish is taken apart in turns, and what its parts hold is counted in the share `received`.

Laws: parts of all publishes together go over the share by those of one publish, and one part of each other: while it is
over, one of them goes on, and the others wait with what they have. Who goes on waits for nobody, so nobody is stuck. Of
all large publishes, however many there are, one has a turn between two turns of everybody else (`long_work`).
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from linn.core.batch.steps import Steps
from linn.core.loop.long_work import LongWork
from linn.core.routing.budget import PublishBudget

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker

T = TypeVar("T")


class PartsMemory:
    """The parts of one publish, for one attempt: use it with `with`, and let go of the parts at its end."""

    def __init__(self, broker: Broker) -> None:
        self.budget = PublishBudget()
        self._work = LongWork(broker)
        self._share = broker.memory.received
        self._parts_turn = broker.parts_turn
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
        """The result of these steps. Cancellation: they end where they are."""
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
        more = self.budget.parts_bytes - self._held_bytes
        self._held_bytes += more
        self._share.used_bytes += more
