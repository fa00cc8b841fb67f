"""Counts of marked offsets below any offset, from ranges in bounded memory.

Laws: ranges ascend and do not overlap, and an exact one, all of whose offsets are marked, never touches another exact
one. There are at most RANGES_MAX ranges; beyond that, pairs of the older half are joined. A joined range counts its
marked offsets as if they were spread evenly: a count from inside it may be off, a count from its bounds never.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

RANGES_MAX = 4096
"""Limit of the ranges: 128 KiB of memory, and a month of one transaction in ten minutes. Beyond it, a count from within
an old range is off by about a thousandth of the marked offsets.
"""


class TallyRange(NamedTuple):
    """Offsets [first, end), of which `count` are marked."""

    first: int
    end: int
    marked: int

    @property
    def is_exact(self) -> bool:
        """Whether all offsets of the range are marked."""
        return self.marked == self.end - self.first


class OffsetTally:
    """A set of offsets that can only be counted. `len` is the number of ranges."""

    __slots__ = ("_counts", "_ends", "_firsts", "_totals")

    def __init__(self, rows: Iterable[tuple[int, int, int]] = ()) -> None:
        self._firsts, self._ends, self._counts = array("q"), array("q"), array("q")
        self._totals: array[int] | None = None
        """The number of marked offsets before each range; None: not computed yet."""
        for row in rows:
            self.put(*row)

    def add(self, first: int, end: int) -> None:
        """Mark the offsets [first, end), which must not be empty; some may be marked already."""
        self.put(first, end, end - first)

    def merge(self, other: OffsetTally) -> None:
        """Mark the marked offsets of another tally."""
        for row in other:
            self.put(*row)

    def put(self, first: int, end: int, count: int) -> None:
        """Mark `count` of the offsets [first, end), at least one; some may be marked already."""
        firsts, ends, counts = self._firsts, self._ends, self._counts
        low, high = bisect_right(ends, first), bisect_left(firsts, end)
        if count == end - first:
            low -= low > 0 and ends[low - 1] == first and self._at(low - 1).is_exact
            high += high < len(firsts) and firsts[high] == end and self._at(high).is_exact
        if low < high:
            first, end = min(first, firsts[low]), max(end, ends[high - 1])
            count = min(count + sum(counts[low:high]), end - first)
        for column, value in ((firsts, first), (ends, end), (counts, count)):
            column[low:high] = array("q", [value])
        self._totals = None
        if len(firsts) > RANGES_MAX:
            self._join_older()

    def _join_older(self) -> None:
        """Join the pairs of older ranges whose counts lose the least accuracy."""
        pairs = range(0, RANGES_MAX // 2, 2)
        joined = set(sorted(pairs, key=self._inaccuracy)[: len(pairs) // 2])
        rows: list[TallyRange] = []
        for place, row in enumerate(self):
            if place - 1 in joined:
                row = TallyRange(rows[-1].first, row.end, rows.pop().marked + row.marked)
            rows.append(row)
        for column, values in zip((self._firsts, self._ends, self._counts), zip(*rows, strict=True), strict=True):
            column[:] = array("q", values)

    def _inaccuracy(self, place: int) -> int:
        count = self._counts[place] + self._counts[place + 1]
        return min(count, self._ends[place + 1] - self._firsts[place] - count)

    def forget_before(self, offset: int) -> None:
        """Forget the ranges that lie wholly before an offset: they are no longer needed."""
        place = bisect_right(self._ends, offset)
        if place:
            del self._firsts[:place], self._ends[:place], self._counts[:place]
            self._totals = None

    # --- reading ---

    def count(self, first: int, end: int) -> int:
        """The number of marked offsets in [first, end)."""
        return self._below(end) - self._below(first) if first < end and self._firsts else 0

    def _below(self, offset: int) -> int:
        place = bisect_left(self._firsts, offset) - 1
        if place < 0:
            return 0
        if self._totals is None:
            self._totals = array("q", accumulate(self._counts, initial=0))
        first, end, count = self._at(place)
        if offset >= end:
            return self._totals[place + 1]
        # Rounded up: an unmarked offset that follows in the range is never counted as marked.
        return self._totals[place] - (first - offset) * count // (end - first)

    def exact(self, start: int) -> list[tuple[int, int]]:
        """The exact ranges that end after `start`."""
        rows = map(self._at, range(bisect_right(self._ends, start), len(self._firsts)))
        return [(row.first, row.end) for row in rows if row.is_exact]

    def _at(self, place: int) -> TallyRange:
        return TallyRange(self._firsts[place], self._ends[place], self._counts[place])

    def __iter__(self) -> Iterator[TallyRange]:
        return map(TallyRange, list(self._firsts), list(self._ends), list(self._counts))

    def __len__(self) -> int:
        return len(self._firsts)
