"""Prefetch: the number of a queue's records that a consumer may hold, adapted to its application's speed. Pure: no I/O.

Laws: the window begins small, and at most doubles each time half of it is settled; beyond the records held by the
application it buffers at most `BUFFERED_S` and a tenth of a lease of work, because other consumers could do that work.
"""

from __future__ import annotations

PREFETCH_FIRST = 4
"""First window: holding four slow jobs costs little if other consumers are idle. Ten doublings reach the maximum."""
PREFETCH_MAX = 4_096
"""Largest window; a larger one improves no rate. A stream's consumer has it from the start."""
BUFFERED_S = 0.1
"""Work buffered in the client: far more than a round trip, and too little to starve other consumers."""
_LEASE_PART = 10


class AdaptivePrefetch:
    """The window of one subscription to a queue."""

    __slots__ = ("_buffered_s", "_busy_since_s", "_cost_s", "_handed", "_settled", "window")

    def __init__(self, lease_s: float, now: float) -> None:
        """`lease_s`: duration of a lease; 0: records are settled on delivery."""
        self.window = PREFETCH_FIRST
        """Limit on records in flight or held by the application."""
        self._buffered_s = min(BUFFERED_S, lease_s / _LEASE_PART) if lease_s else BUFFERED_S
        self._cost_s: float | None = None
        """Moving average of the application's time per record."""
        self._handed = 0
        self._settled = 0
        self._busy_since_s = now

    @property
    def is_due(self) -> bool:
        """Whether the application has taken enough that `adapt` is due before it takes more."""
        return 2 * self._handed >= self.window

    def handed(self, records: int) -> None:
        """Count records that the application takes."""
        self._handed += records

    def settled(self, records: int) -> None:
        """Count records that were settled."""
        self._settled += records

    def resumed(self, now: float) -> None:
        """Restart the application's clock after a wait for records, which is not processing time."""
        self._busy_since_s = now

    def adapt(self, now: float, with_application: int) -> bool:
        """Adapt the window when the application asks for more; return whether it changed.

        `with_application`: records held by the application."""
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
        """Grow the window if the application holds all of it and waits for more; return whether it grew.

        Without this, an application that collects records before it settles any would wait for ever.
        """
        return self._grow()

    def _grow(self) -> bool:
        before, self.window = self.window, min(2 * self.window, PREFETCH_MAX)
        self._settled = 0
        return self.window > before
