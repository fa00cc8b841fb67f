"""The in-memory part of a dram log."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import cast

from linn.api import READ_BATCHES_MAX, OffsetOutOfRange, RecordBatch

BATCH_OVERHEAD_BYTES = 2048
"""Memory of a RecordBatch besides its bytes: numbers, a view per column (measured: 1.3 KiB), and list entries."""
_COMPACT_FROM = 64
_FORGOTTEN = cast(RecordBatch, None)
"""Placeholder of a dropped batch; never read."""


def owned(batch: RecordBatch) -> RecordBatch:
    """Return `batch`, or a copy if it would keep a buffer of more than twice its size alive."""
    if memoryview(batch.message.obj).nbytes > 2 * batch.size:
        return RecordBatch(bytearray(batch.message))
    return batch


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of retention besides size."""

    oldest_ms: int | None
    before: int | None
    keep: int | None = None
    """Nothing is dropped from here on."""

    def keeps(self, end_offset: int) -> bool:
        """Whether a part that ends there must not be dropped, whatever bound it exceeds."""
        return self.keep is not None and end_offset > self.keep

    def is_over(self, append_ms: int, end_offset: int) -> bool:
        """Whether a part that was appended at that time and ends there should be dropped."""
        old = self.oldest_ms is not None and append_ms < self.oldest_ms
        return old or (self.before is not None and end_offset <= self.before)


class MemoryRun:
    """Consecutive batches. Dropping from the front is O(1) per batch, amortised."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.last_append_ms = 0
        self._batches: list[RecordBatch] = []
        self._bases: list[int] = []
        self._times = LatestTimes()
        self._first = 0
        """Index of the first kept batch; earlier ones are dropped."""

    @property
    def held_bytes(self) -> int:
        """The memory that the run uses."""
        return self.size_bytes + BATCH_OVERHEAD_BYTES * (len(self._bases) - self._first)

    def append(self, batch: RecordBatch) -> None:
        """Append a stamped batch."""
        batch.forget_views()
        self._batches.append(owned(batch))
        self._bases.append(batch.base_offset)
        self._times.append(batch.max_timestamp_ms)
        self.size_bytes += batch.size
        self.end_offset = batch.end_offset
        self.last_append_ms = batch.append_time_ms

    async def read(self, offset: int, bytes_max: int, *, at_least_one: bool) -> list[RecordBatch]:
        """The batches from the one that holds `offset` on, not copied. Never waits."""
        return self._from(offset, bytes_max, at_least_one)

    def read_nowait(self, offset: int, bytes_max: int) -> list[RecordBatch]:
        """The batches from the one that begins at `offset` on, not copied; empty if none begins there."""
        batches = self._from(offset, bytes_max, at_least_one=True)
        return batches if batches and batches[0].base_offset == offset else []

    def _from(self, offset: int, bytes_max: int, at_least_one: bool) -> list[RecordBatch]:
        place = last = bisect_right(self._bases, offset, self._first) - 1
        batches = self._batches
        if at_least_one:
            bytes_max -= batches[last].size
            last += 1
        end = min(len(batches), place + READ_BATCHES_MAX)
        while last < end and (bytes_max := bytes_max - batches[last].size) >= 0:
            last += 1
        return batches[place:last]

    async def offset_at(self, timestamp_ms: int, start: int) -> int | None:
        """The offset of the first batch, or `start` in it, with a timestamp at or after `timestamp_ms`. Never waits."""
        if start >= self.end_offset:
            return None
        place = max(self._first, bisect_right(self._bases, start, self._first) - 1)
        found = self._times.first_from(place, timestamp_ms)
        return max(self._bases[found], start) if found is not None else None

    def forget(self, before: int) -> None:
        """Drop the batches that lie wholly before offset `before`."""
        place = self._first
        while place < len(self._batches) and self._batches[place].end_offset <= before:
            self.size_bytes -= self._batches[place].size
            self._batches[place] = _FORGOTTEN
            place += 1
        self._first = place
        self.base_offset = self._bases[place] if place < len(self._bases) else self.end_offset
        if place >= _COMPACT_FROM and 2 * place >= len(self._batches):
            del self._batches[:place], self._bases[:place]
            self._times.forget(place)
            self._first = 0

    def droppable(self, bound: Bound, excess_bytes: int, *, newest: bool) -> int:
        """The offset up to which batches exceed a bound; in the `newest` run the last batch never counts as excess."""
        end = self.base_offset
        last = len(self._batches) - 1 if newest else len(self._batches)
        for place in range(self._first, len(self._batches)):
            batch = self._batches[place]
            over = excess_bytes > 0 and place != last
            if bound.keeps(batch.end_offset) or not (over or bound.is_over(batch.append_time_ms, batch.end_offset)):
                break
            excess_bytes -= batch.size
            end = batch.end_offset
        return end

    async def cut(self, after: int) -> None:
        """Drop the batches from offset `after` on, which must be a boundary. Raises OffsetOutOfRange."""
        place = bisect_right(self._bases, after, self._first) - 1
        if place < self._first or self._bases[place] != after:
            raise OffsetOutOfRange(f"no batch begins at offset {after}")
        self.size_bytes -= sum(batch.size for batch in self._batches[place:])
        del self._batches[place:], self._bases[place:]
        self._times.cut(place)
        self.end_offset = after

    def drop(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self._bases.clear()
        self._times.cut(0)
        self._first = self.size_bytes = 0


_BLOCK = 64
"""Numbers combined into one number of the next level."""


class LatestTimes:
    """One timestamp per batch, in order.

    Timestamps come from the producers and need not ascend, and batches are dropped from the front, so a running maximum
    would still include dropped ones. Instead, the maximum of every 64 batches is kept, of every 64 of these maxima, and
    so on, and only the maxima after the start of a search are examined.

    Laws: a search examines at most 128 numbers per level, and an append costs O(1) amortised.
    """

    __slots__ = ("_levels", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._levels = [self._times]
        """The times, and on each further level the maxima of the whole blocks of the level below."""

    def append(self, time_ms: int) -> None:
        """Append the time of one batch."""
        times = self._times
        times.append(time_ms)
        if not len(times) % _BLOCK:
            self._complete_block()

    def _complete_block(self) -> None:
        """Add the maximum of the last block, now complete, if necessary on several levels."""
        levels = self._levels
        for level, times in enumerate(levels):
            if len(times) % _BLOCK:
                return
            if level + 1 == len(levels):
                levels.append(array("q"))
            levels[level + 1].append(max(times[-_BLOCK:]))

    def first_from(self, place: int, time_ms: int) -> int | None:
        """The first batch at or after `place` whose time is `time_ms` or later."""
        levels, level = self._levels, 0
        while True:
            times = levels[level]
            if place == len(times):
                if not level:
                    return None
                level, place = level - 1, place * _BLOCK  # Partial blocks have no entry on this level.
            elif times[place] < time_ms:
                place += 1
                if not place % _BLOCK and level + 1 < len(levels):
                    level, place = level + 1, place // _BLOCK
            elif level:
                level, place = level - 1, place * _BLOCK
            else:
                return place

    def forget(self, count: int) -> None:
        """Drop `count` times from the front; the others are counted from 0 again. Linear in the number left."""
        del self._times[:count]
        del self._levels[1:]
        for level in self._levels:
            whole = len(level) // _BLOCK
            if whole:
                self._levels.append(array("q", [max(level[_BLOCK * n : _BLOCK * n + _BLOCK]) for n in range(whole)]))

    def cut(self, count: int) -> None:
        """Keep the first `count` times."""
        for times in self._levels:
            del times[count:]
            count //= _BLOCK
