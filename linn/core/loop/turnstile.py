"""The way out of a broker: thousands of connections may end at the same moment, and leave a few at a time."""

from __future__ import annotations

from collections.abc import Callable

import trio

from linn.core.loop.long_work import let_others_on

LEAVING_AT_ONCE_MAX = 4
"""What they have to clear away takes a turn's time, about: half a millisecond."""
WAITING_MAX = 64
"""From then on one comes where four leave: the kernel keeps who knocks in less memory than the broker who leaves."""


class Turnstile:
    """Who has something to clear away, and nobody to wait for it, passes through first."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._passing = trio.Semaphore(LEAVING_AT_ONCE_MAX)
        self._passed: set[object] = set()
        self._is_wide = False

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait to leave that few should come."""
        return self._passing.statistics().tasks_waiting >= WAITING_MAX

    def open_wide(self) -> None:
        """Nobody stays: let all pass as they come."""
        self._is_wide = True

    async def pass_through(self, who: object) -> None:
        """Return when few others pass, and those who stay have had their turns; at once the second time.

        Cancellation: a checkpoint; whoever must pass shields it.
        """
        if who in self._passed or self._is_wide:
            await trio.lowlevel.checkpoint()
            return
        async with self._passing:
            self._passed.add(who)
            await self.give_turns()

    async def give_turns(self) -> None:
        """Let others go on: some turns, or the time of these where each of them is long.

        Cancellation: a checkpoint.
        """
        await let_others_on(self._monotonic)

    def is_out(self, who: object) -> None:
        """It is gone, and was the last to ask."""
        self._passed.discard(who)
