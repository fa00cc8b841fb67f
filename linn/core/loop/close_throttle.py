"""A limit on how many connections are torn down at a time, when thousands end at the same moment."""

from __future__ import annotations

from collections.abc import Callable

import trio

from linn.core.loop.long_work import let_others_on

LEAVING_AT_ONCE_MAX = 4
"""Connections torn down per turn: their cleanup takes about a turn's time, half a millisecond."""
WAITING_MAX = 64
"""Backlog from which one connection is accepted per four torn down: a queued connection takes less memory in the kernel
than one that is being torn down.
"""


class CloseThrottle:
    """Limit how many connections are torn down at a time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._passing = trio.Semaphore(LEAVING_AT_ONCE_MAX)
        self._passed: set[object] = set()
        self._is_wide = False

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait to be torn down that few should be accepted."""
        return self._passing.statistics().tasks_waiting >= WAITING_MAX

    def open_wide(self) -> None:
        """Remove the limit: all connections end."""
        self._is_wide = True

    async def pass_through(self, who: object) -> None:
        """Wait for a turn to be torn down, after those that stay had theirs; a second call by `who` returns at once.

        Cancellation: a checkpoint; a caller that must pass shields it.
        """
        if who in self._passed or self._is_wide:
            await trio.lowlevel.checkpoint()
            return
        async with self._passing:
            self._passed.add(who)
            await self.give_turns()

    async def give_turns(self) -> None:
        """Let other tasks run: some turns, or the time of these if each of them is long.

        Cancellation: a checkpoint.
        """
        await let_others_on(self._monotonic)

    def is_out(self, who: object) -> None:
        """Record that a connection is torn down; the last call for `who`."""
        self._passed.discard(who)
