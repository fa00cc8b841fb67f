"""Returned records that wait for their next attempt, and their delays.

Laws: a returned record keeps its offset, hence its place. One whose delay has not passed is not ready and does not
block others. A delay is measured from the return on the monotonic clock; after a restart, when that clock is another,
the whole recorded delay is waited for again: never less than was asked for.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import Range


class Delay(NamedTuple):
    """The delay of a returned record: attempts so far, and the time (monotonic seconds) when it becomes ready."""

    attempts: int
    ready_at: float


class Recorded(NamedTuple):
    """A delay in the event log: attempts so far, and the delay to wait after the broker has started again."""

    attempts: int
    delay_ms: int


class ReturnedRecords:
    """The returned records of one subscription: ready, delayed, or (while events are replayed) recorded as delayed."""

    __slots__ = ("_ready_at", "delayed", "ready", "recorded")

    def __init__(self) -> None:
        self.ready: OffsetMap[int] = OffsetMap()
        """Attempts so far, by offset."""
        self.delayed: OffsetMap[Delay] = OffsetMap()
        self.recorded: OffsetMap[Recorded] = OffsetMap()
        self._ready_at: list[tuple[float, int, int]] = []

    def add(self, first: int, end: int, attempts: int, delay_ms: int, now: float) -> None:
        """Return records, ready at once or after a delay."""
        if delay_ms <= 0:
            self.ready.set(first, end, attempts)
            return
        ready_at = now + delay_ms / 1000
        self.delayed.set(first, end, Delay(attempts, ready_at))
        heappush(self._ready_at, (ready_at, first, end))

    def promote(self, now: float) -> list[Range]:
        """Make records ready whose delay has passed; returns them, in order."""
        heap = self._ready_at
        if not heap or heap[0][0] > now:
            return []
        due: list[tuple[int, int, Delay]] = []
        while heap and heap[0][0] <= now:
            ready_at, first, end = heappop(heap)
            pieces = self.delayed.pieces(first, end)
            assert all(delay.ready_at == ready_at for _, _, delay in pieces), (
                "the heap has one entry for each return, and drop() makes it anew"
            )
            due += pieces
        # Together: a restart lets many be due at once, and one by one each would move all that lie behind it.
        due.sort()
        self.delayed.take_rows([first for first, _, _ in due], [end for _, end, _ in due])
        self.ready.set_rows([(first, end, delay.attempts) for first, end, delay in due])
        return [(first, end) for first, end, _ in due]

    def next_ready_at(self) -> float | None:
        """The time when the next delay passes, or None."""
        return self._ready_at[0][0] if self._ready_at else None

    def end_of_lowest(self, records: int, cursor: int, end: int) -> int:
        """The offset below which the lowest `records` records lie that wait, delayed ones too; at most `end`.

        Records from `cursor` on were never delivered. Examines no ranges above the result.
        """
        for first, stop, _ in sorted([*self.ready.lowest(records), *self.delayed.lowest(records)]):
            if records <= stop - first:
                return first + records
            records -= stop - first
        return max(cursor, min(end, cursor + records))

    def drop(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Remove waiting records in [first, end), ready or not; returns (first, end, attempts), in order."""
        dropped = self.ready.take(first, end)
        delayed = self.delayed.take(first, end)
        if delayed:
            self._ready_at = [(delay.ready_at, start, stop) for start, stop, delay in self.delayed]
            heapify(self._ready_at)
        dropped += [(start, stop, delay.attempts) for start, stop, delay in delayed]
        dropped += [(start, stop, recorded.attempts) for start, stop, recorded in self.recorded.take(first, end)]
        return sorted(dropped)

    def record(self, first: int, end: int, attempts: int, delay_ms: int) -> None:
        """Add records during replay, when there is no clock yet: the delay begins with `start_recorded`."""
        if delay_ms <= 0:
            self.ready.set(first, end, attempts)
        else:
            self.recorded.set(first, end, Recorded(attempts, delay_ms))

    def start_recorded(self, now: float) -> None:
        """Begin the delays recorded in the event log."""
        if not self.recorded.count:
            return
        rows = [
            (first, end, Delay(recorded.attempts, now + recorded.delay_ms / 1000))
            for first, end, recorded in self.recorded
        ]
        self.recorded.clear()
        self.delayed.set_rows(rows)
        self._ready_at += [(delay.ready_at, first, end) for first, end, delay in rows]
        heapify(self._ready_at)
