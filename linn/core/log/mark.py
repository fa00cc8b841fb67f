"""A mark: an offset of a partition that only grows, and callbacks that wait for it to pass other offsets.

Laws: callbacks run in the order of their offsets. Thousands of callbacks block nothing: a few are called in each turn
of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from linn.core.env.env import Spawn
from linn.core.log.watchers import TOLD_AT_ONCE_MAX


class Mark:
    """One mark. Only its partition moves it."""

    __slots__ = ("_spawn", "_telling", "offset", "waiting")

    def __init__(self, offset: int, spawn: Spawn) -> None:
        self.offset = offset
        """Offsets below it are done."""
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """(end offset, callback), by end offset. After moving the mark, call `tell` if there are any."""
        self._spawn = spawn
        self._telling = False

    def when_passed(self, end_offset: int, callback: Callable[[], None]) -> None:
        """Call back once everything before `end_offset` has passed: at once, or later from the loop.

        `end_offset` must not be beyond the end of the last appended batch.
        """
        if self.offset >= end_offset and not self._is_due():
            callback()
        else:
            self.waiting.append((end_offset, callback))

    async def wait(self, end_offset: int) -> None:
        """Wait until everything before `end_offset` has passed. Cancellation: the records stay appended."""
        if self.offset < end_offset:
            passed = trio.Event()
            self.when_passed(end_offset, passed.set)
            await passed.wait()

    def tell(self) -> None:
        """Run the callbacks that are due, after the mark was moved."""
        if not self._telling:
            self._tell_batch()
            if self._is_due():
                self._telling = True
                self._spawn(self._tell_rest)

    def _is_due(self) -> bool:
        return bool(self.waiting) and self.waiting[0][0] <= self.offset

    def _tell_batch(self) -> None:
        for _ in range(TOLD_AT_ONCE_MAX):
            if not self._is_due():
                return
            self.waiting.popleft()[1]()

    async def _tell_rest(self) -> None:
        try:
            while self._is_due():
                await trio.lowlevel.checkpoint()
                self._tell_batch()
        finally:
            self._telling = False
