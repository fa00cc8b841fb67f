"""Returned records that wait for their next attempt, and their delays.

Laws: a returned record keeps its offset, hence its place. One whose delay has not passed is not ready and does not
block others. The end of a delay is a wall time, which survives a restart; records become ready by `promote` alone, and
never because time passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple

from linn.core.queue.event import LOST
from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import Range

PROMOTED_AT_ONCE = 10_000
"""Returns whose delays end in one step, in about 20 ms: a broker that was down may find a million."""
SUSPECTS_MAX = 128
"""Limit of the records of one lease that were lost once: the root of what a lease may have. So what a consumer was lost
with is back after as many leases, and another loss leaves as many suspects, which are leased alone.
"""
STALE_MIN = 64
"""Stale entries, beyond one for each delayed range, at which the heap of times is rebuilt."""
JITTER_SHARE = 10
"""Divisor of a delay that gives its jitter, the most that is added to it."""
JITTER_PARTS_MAX = 16
"""Limit of the parts in which records that are returned together become ready: each is a row of the state log."""
_GOLDEN = 0x9E3779B9
"""2^32 divided by the golden ratio: its multiples, modulo 2^32, lie evenly spread."""


class Delay(NamedTuple):
    """The delay of a returned record: attempts so far, and the wall time when it becomes ready."""

    attempts: int
    ready_ms: int


def spread(
    ranges: Sequence[Range], attempts: int, ready_ms: int, jitter_ms: int, salt: int
) -> list[tuple[int, int, int, int]]:
    """The rows, as (first, end, attempts, ready_ms), of records that are returned together, from `ready_ms` on and up
    to `jitter_ms` later.

    A range comes back in up to JITTER_PARTS_MAX parts, in order. The times follow from the arguments: a state machine
    has no dice. `salt` differs between partitions.
    """
    rows: list[tuple[int, int, int, int]] = []
    for first, end in ranges:
        parts = max(1, min(end - first, JITTER_PARTS_MAX // len(ranges), jitter_ms))
        size = -(-(end - first) // parts)
        chance = (first + attempts * salt) * _GOLDEN % (1 << 32) / (1 << 32)
        for part, at in enumerate(range(first, end, size)):
            later_ms = int(jitter_ms * (part + chance) / parts)
            rows.append((at, min(at + size, end), attempts, ready_ms + later_ms))
    return rows


def lease_max(attempts: int, records_max: int, lost_max: int) -> int:
    """The most records with these attempts that a lease of up to `records_max` may have.

    `lost_max`: the limit of records that were lost in their first attempt. Others that were lost are leased alone; none
    are if it is 0.
    """
    if not attempts & LOST:
        return records_max
    return min(records_max, lost_max if attempts == LOST | 1 else 1, lost_max)


class ReturnedRecords:
    """The returned records of one subscription: ready or delayed."""

    __slots__ = ("_ready_ms", "delayed", "ready")

    def __init__(self) -> None:
        self.ready: OffsetMap[int] = OffsetMap()
        """Attempts so far, by offset, with the flag LOST if the record came back by a loss."""
        self.delayed: OffsetMap[Delay] = OffsetMap()
        self._ready_ms: list[tuple[int, int, int]] | None = None
        """A heap of (time, first, end), with stale entries of dropped records; None: to be made from `delayed`."""

    def add(self, first: int, end: int, attempts: int, ready_ms: int) -> None:
        """Add returned records, which are ready at a wall time; 0: at once."""
        if not ready_ms:
            self.ready.set(first, end, attempts)
            return
        self.delayed.set(first, end, Delay(attempts, ready_ms))
        if self._ready_ms is not None:
            heappush(self._ready_ms, (ready_ms, first, end))

    def add_rows(self, rows: list[tuple[int, int, int, int]]) -> None:
        """Add ascending rows of (first, end, attempts, ready_ms), none of which is here."""
        if ready := [(first, end, attempts) for first, end, attempts, ready_ms in rows if not ready_ms]:
            self.ready.set_rows(ready)
        if delayed := [(first, end, Delay(attempts, time)) for first, end, attempts, time in rows if time]:
            self.delayed.set_rows(delayed)
            if (heap := self._ready_ms) is not None:
                for first, end, delay in delayed:
                    heappush(heap, (delay.ready_ms, first, end))

    def take_ready(self, records_max: int, lost_max: int) -> tuple[int, int, int] | None:
        """Take the lowest ready records, of which there are some, as (first, end, attempts).

        Records that came back by a loss are limited by `lost_max` as in `lease_max`, and skipped if it is 0.
        """
        ready = self.ready
        first, end, attempts = ready.take_lowest(records_max)
        count = lease_max(attempts, records_max, lost_max)
        if count < end - first:
            ready.set(first + count, end, attempts)
        if count:
            return first, min(end, first + count), attempts
        start = next((start for start, _, attempts in ready if not attempts & LOST), None)
        return None if start is None else ready.take_from(start, records_max)

    def attempts_at(self, offset: int) -> int | None:
        """The attempts at the record at an offset so far, with the flag LOST; None: it is not here."""
        if found := self.ready.pieces(offset, offset + 1):
            return found[0][2]
        delayed = self.delayed.pieces(offset, offset + 1) if self.delayed.count else ()
        return delayed[0][2].attempts if delayed else None

    def promote(self, now: float) -> list[tuple[int, int, int]]:
        """Make records ready whose delay has passed; returns them as ascending (first, end, attempts).

        After PROMOTED_AT_ONCE returns others are left, and `next_ready_at` has passed.
        """
        heap, due = self._heap(), list[tuple[int, int, Delay]]()
        for _ in range(PROMOTED_AT_ONCE):
            if not heap or heap[0][0] / 1000 > now:
                break
            ready_ms, first, end = heappop(heap)
            due += [piece for piece in self.delayed.pieces(first, end) if piece[2].ready_ms == ready_ms]
        if not due:
            return []
        # Together: a restart lets many be due at once, and one by one each would move all that lie behind it.
        due.sort()
        self.delayed.take_rows([first for first, _, _ in due], [end for _, end, _ in due])
        rows = [(first, end, delay.attempts) for first, end, delay in due]
        self.ready.set_rows(rows)
        return rows

    def next_ready_at(self) -> float | None:
        """The time in seconds when the next delay passes, or None."""
        heap = self._heap() if self.delayed.count else []
        while heap:
            ready_ms, first, end = heap[0]
            if any(delay.ready_ms == ready_ms for _, _, delay in self.delayed.pieces(first, end)):
                return ready_ms / 1000
            heappop(heap)  # Its records were dropped.
        return None

    def _heap(self) -> list[tuple[int, int, int]]:
        heap = self._ready_ms
        if heap is None:
            heap = self._ready_ms = [(delay.ready_ms, first, end) for first, end, delay in self.delayed]
            heapify(heap)
        return heap

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
        delayed = self.delayed.take(first, end) if self.delayed.count else ()
        if delayed:
            self._forget_stale()
            dropped += [(start, stop, delay.attempts) for start, stop, delay in delayed]
            dropped.sort()
        return dropped

    def drop_rows(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Remove waiting records in ascending ranges."""
        self.ready.take_rows(firsts, ends)
        if self.delayed.count:
            self.delayed.take_rows(firsts, ends)
            self._forget_stale()

    def _forget_stale(self) -> None:
        if self._ready_ms is not None and len(self._ready_ms) > len(self.delayed) + STALE_MIN:
            self._ready_ms = None

    def cap(self, now: float, delay_ms_max: int) -> list[tuple[int, int, int, int]]:
        """Bring ready times forward that lie more than `delay_ms_max` from now; returns the changed rows.

        No delay is longer: the wall clock was ahead when they were recorded, and was set back since.
        """
        latest_ms = ceil(now * 1000) + delay_ms_max
        late = [(first, end, it.attempts) for first, end, it in self.delayed if it.ready_ms > latest_ms]
        rows = [(*row, latest_ms) for row in late]
        if rows:
            self.delayed.take_rows([row[0] for row in rows], [row[1] for row in rows])
            self.add_rows(rows)
        return rows
