"""A mark: an offset of a partition that only grows, and callbacks that wait for it to pass other offsets.

Laws: callbacks run in the order of their offsets, each once: with None when the mark has passed its offset, or with the
error after which it never will. A mark that has failed stays where it is: the offsets above it may be given to other
records. Thousands of callbacks block nothing: a few are called in each turn of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from linn.core.env.env import Spawn
from linn.core.errors.tree import LinnError
from linn.core.log.watchers import TOLD_AT_ONCE_MAX

OnPassed = Callable[[LinnError | None], None]


class Mark:
    """One mark. Only its partition moves it."""

    __slots__ = ("_spawn", "_telling", "failure", "offset", "waiting")

    def __init__(self, offset: int, spawn: Spawn) -> None:
        self.offset = offset
        """Offsets below it are done."""
        self.failure: LinnError | None = None
        """The reason why it never moves again."""
        self.waiting: deque[tuple[int, OnPassed]] = deque()
        """(end offset, callback), by end offset. After moving the mark, call `tell` if there are any."""
        self._spawn = spawn
        self._telling = False

    def when_passed(self, end_offset: int, callback: OnPassed) -> None:
        """Call back with None once everything before `end_offset` has passed, or with the mark's failure: at once, or
        later from the loop.

        `end_offset` must not be beyond the end of the last appended batch.
        """
        if (self.offset >= end_offset or self.failure is not None) and not self._is_due():
            callback(None if self.offset >= end_offset else self.failure)
        else:
            self.waiting.append((end_offset, callback))

    async def wait(self, end_offset: int) -> None:
        """Wait until everything before `end_offset` has passed. Cancellation: the records stay appended.

        Raises NotLeader: the broker leads the partition no more.
        """
        if self.offset < end_offset:
            passed, failure = trio.Event(), None

            def told(error: LinnError | None) -> None:
                nonlocal failure
                failure = error
                passed.set()

            self.when_passed(end_offset, told)
            await passed.wait()
            if failure is not None:
                raise failure

    def fail(self, error: LinnError) -> None:
        """Fail all that waits, now or later, for offsets that the mark has not passed: it moves no more."""
        self.failure = error
        self.tell()

    def tell(self) -> None:
        """Run the callbacks that are due, after the mark was moved or failed."""
        if not self._telling:
            self._tell_batch()
            if self._is_due():
                self._telling = True
                self._spawn(self._tell_rest)

    def _is_due(self) -> bool:
        return bool(self.waiting) and (self.waiting[0][0] <= self.offset or self.failure is not None)

    def _tell_batch(self) -> None:
        for _ in range(TOLD_AT_ONCE_MAX):
            if not self._is_due():
                return
            end_offset, callback = self.waiting.popleft()
            callback(None if end_offset <= self.offset else self.failure)

    async def _tell_rest(self) -> None:
        try:
            while self._is_due():
                await trio.lowlevel.checkpoint()
                self._tell_batch()
        finally:
            self._telling = False
