"""The way out of a broker: thousands of connections may end at the same moment, and leave a few at a time."""

from __future__ import annotations

import trio

from linn.core.long_work import TURNS_OF_OTHERS

LEAVING_AT_ONCE_MAX = 4
"""What they have to clear away takes a turn's time, about: half a millisecond."""
WAITING_MAX = 64
"""Who comes waits for them: the kernel keeps who knocks in less memory than the broker keeps who leaves."""


class Turnstile:
    """Who has something to clear away, and nobody to wait for it, passes through first."""

    def __init__(self) -> None:
        self._passing = trio.Semaphore(LEAVING_AT_ONCE_MAX)

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait to leave that nobody should come."""
        return self._passing.statistics().tasks_waiting >= WAITING_MAX

    async def pass_through(self) -> None:
        """Return when few others do, and those who stay have had their turns.

        Cancellation: a checkpoint; whoever must pass shields it.
        """
        async with self._passing:
            for _ in range(TURNS_OF_OTHERS):
                await trio.lowlevel.checkpoint()
