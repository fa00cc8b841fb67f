"""Thinning of one partition's log, by whichever task has to: one at a time.

Law: followers may thin below the offset up to which this broker has done it, by the settlements that are committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from linn.core.log.storage import Needed, PartitionLog


class Thinning:
    """The thinning of one log."""

    def __init__(self, log: PartitionLog) -> None:
        self.is_allowed = True
        """Whether all brokers that have the log know how to follow one that is thinned."""
        self.is_running = False
        self.before = 0
        """The offset below which the log was thinned; 0: it was not, or its settled records have to stay now."""
        self._log = log

    async def run(self, needed: Needed, before: int, commit: Callable[[], Awaitable[None]]) -> None:
        """See `PartitionLog.thin`. Does nothing while it runs already. Raises LinnError."""
        if self.is_running:
            return
        self.is_running = True
        try:
            if await self._log.thin(needed, before, commit):
                self.before = max(self.before, before)
        finally:
            self.is_running = False
