"""Prefetch: how many records of a queue a consumer may hold, adapted to how fast its application works. Pure: no I/O.

Laws: few at first, at most twice as many once half of them were settled; beyond what the application has in its hands,
no more than it works through in `BUFFERED_S`, and in a tenth of a lease. What waits here could be worked on elsewhere.
"""

from __future__ import annotations

PREFETCH_FIRST = 4
"""Little enough that four slow jobs are a small loss where others are idle; doubled ten times it is the most."""
PREFETCH_MAX = 4_096
"""Beyond it no rate grows; what a stream's consumer has from the start."""
BUFFERED_S = 0.1
"""Work that waits in the client: far more than a round trip, and too little to leave other consumers without any."""
_LEASE_PART = 10


class AdaptivePrefetch:
    """The window of one subscription of a queue."""

    __slots__ = ("_buffered_s", "_busy_since_s", "_cost_s", "_handed", "_settled", "window")

    def __init__(self, lease_s: float, now: float) -> None:
        """`lease_s`: how long a lease lasts; 0 where records are settled when they are delivered."""
        self.window = PREFETCH_FIRST
        """Records that may be on their way or with the application."""
        self._buffered_s = min(BUFFERED_S, lease_s / _LEASE_PART) if lease_s else BUFFERED_S
        self._cost_s: float | None = None
        """The application's time for one record, the latest counting most."""
        self._handed = 0
        self._settled = 0
        self._busy_since_s = now

    @property
    def is_due(self) -> bool:
        """Whether the application has taken enough since the last time to `adapt` before it takes more."""
        return 2 * self._handed >= self.window

    def handed(self, records: int) -> None:
        """The application takes some records."""
        self._handed += records

    def settled(self, records: int) -> None:
        """Some records are done with."""
        self._settled += records

    def resumed(self, now: float) -> None:
        """The application has waited for records, and has some now: the wait was not its own time."""
        self._busy_since_s = now

    def adapt(self, now: float, with_application: int) -> bool:
        """The application asks for more, and has so many in its hands. Whether the window has changed."""
        if self._handed:
            cost_s = max(0.0, now - self._busy_since_s) / self._handed
            self._cost_s = cost_s if self._cost_s is None else (self._cost_s + cost_s) / 2
            self._handed = 0
        self._busy_since_s = now
        if self._cost_s is None:
            return False
        buffered = self._buffered_s / self._cost_s if self._cost_s * PREFETCH_MAX > self._buffered_s else PREFETCH_MAX
        target = with_application + 1 + int(buffered)
        if target > self.window:
            return 2 * self._settled >= self.window and self._grow()
        if 2 * target > self.window:
            return False
        self.window = 1 << (target - 1).bit_length()
        self._settled = 0
        return True

    def starved(self) -> bool:
        """The application has all of it, settles nothing, and asks for more. Whether the window has changed.

        It collects records before it settles them, say, and would wait for ever.
        """
        return self._grow()

    def _grow(self) -> bool:
        before, self.window = self.window, min(2 * self.window, PREFETCH_MAX)
        self._settled = 0
        return self.window > before
