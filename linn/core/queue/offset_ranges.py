"""A set of offsets, kept as sorted, disjoint, half-open ranges [first, end).

Laws: ranges never overlap and never touch (touching ones are one range), so the size of the set is the number of its
gaps and not the number of its offsets. Lookup is O(log n) in the number of ranges; a change at the end is O(1), and a
change elsewhere moves no more than a part of the ranges (see `range_parts`). Ranges given to it must not be empty; that
is asserted, so input from a peer is checked before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from linn.core.queue.offset_rows import BETWEEN_MAX
from linn.core.queue.range_parts import RangeParts

Range = tuple[int, int]
"""(first, end): the offsets first to end-1."""


class OffsetRanges(RangeParts):
    """A mutable set of offsets. `len` is the number of ranges, `count` the number of offsets."""

    __slots__ = ()

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._parts = None
        self._firsts, self._ends = [], []
        self.count = 0
        if rows := list(ranges):
            self.add_rows(rows)

    def add(self, first: int, end: int) -> None:
        """Add the offsets of [first, end); some may be in the set already."""
        assert first < end
        if self._parts is not None:
            if first > self._parts[-1]._ends[-1]:
                self._parts[-1]._add(first, end)
                self.count += end - first
                self._fit(len(self._parts) - 1)
            else:
                self._within(first, end, OffsetRanges._add, first, end)
            return
        ends = self._ends
        if ends and first == ends[-1]:
            ends[-1] = end
            self.count += end - first
            return
        self._add(first, end)
        if len(ends) > self.part_ranges_max:
            self._divide()

    def _add(self, first: int, end: int) -> None:
        firsts, ends = self._firsts, self._ends
        if ends and first <= ends[-1]:
            self._merge(first, end)
            return
        firsts.append(first)
        ends.append(end)
        self.count += end - first

    def _merge(self, first: int, end: int) -> None:
        """Add a range that lies before, within or across existing ranges."""
        firsts, ends = self._firsts, self._ends
        low = bisect_left(ends, first)
        high = bisect_right(firsts, end)
        if low == high:
            firsts.insert(low, first)
            ends.insert(low, end)
        else:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
            self.count -= sum(ends[low:high]) - sum(firsts[low:high])
            firsts[low], ends[low] = first, end
            del firsts[low + 1 : high], ends[low + 1 : high]
        self.count += end - first

    def add_rows(self, rows: Sequence[Range]) -> None:
        """Add ascending, disjoint ranges, at least one: together, where they lie close."""
        first, end = rows[0][0], rows[-1][1]
        if len(rows) == 1 or self.ranges_within(first, end) > BETWEEN_MAX * len(rows):
            for row in rows:
                self.add(*row)
        elif self._parts is not None:
            self._within(first, end, OffsetRanges._add_rows, rows)
        else:
            self._add_rows(rows)
            if len(self._firsts) > self.part_ranges_max:
                self._divide()

    def _add_rows(self, rows: Sequence[Range]) -> None:
        low = bisect_left(self._ends, rows[0][0])
        high = bisect_right(self._firsts, rows[-1][1])
        before = zip(self._firsts[low:high], self._ends[low:high], strict=True)
        firsts: list[int] = []
        ends: list[int] = []
        behind = -1
        for first, end in sorted([*before, *rows]):
            if first > behind:
                firsts.append(first)
                ends.append(end)
                behind = end
            elif end > behind:
                ends[-1] = behind = end
        self.count += sum(ends) - sum(firsts) - sum(self._ends[low:high]) + sum(self._firsts[low:high])
        rest = self._slice(high, len(self._firsts))
        del self._firsts[low:], self._ends[low:]
        self._append(firsts, ends)
        self._append(*rest)

    def remove(self, first: int, end: int) -> None:
        """Remove the offsets of [first, end); some may not be in the set."""
        assert first < end
        if self._parts is not None:
            self._within(first, end, OffsetRanges._remove, first, end)
            return
        self._remove(first, end)
        if len(self._firsts) > self.part_ranges_max:
            self._divide()

    def _remove(self, first: int, end: int) -> None:
        firsts, ends = self._firsts, self._ends
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end)
        if low >= high:
            return
        left, right = firsts[low], ends[high - 1]
        self.count -= sum(ends[low:high]) - sum(firsts[low:high])
        del firsts[low:high], ends[low:high]
        if right > end:
            firsts.insert(low, end)
            ends.insert(low, right)
            self.count += right - end
        if left < first:
            firsts.insert(low, left)
            ends.insert(low, first)
            self.count += first - left

    def covers(self, first: int, end: int) -> bool:
        """Whether every offset of [first, end) is in the set."""
        if self._parts is not None:
            return self._parts[bisect_right(self._minima, first)].covers(first, end)
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and end <= self._ends[at]

    def intersect(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are in the set, in order."""
        if self._parts is not None:
            return [found for part in self._meeting(first, end) for found in part.intersect(first, end)]
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        pairs = zip(self._firsts[low:high], self._ends[low:high], strict=True)
        return [(max(first, start), min(end, stop)) for start, stop in pairs]

    def gaps(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are not in the set, in order."""
        found: list[Range] = []
        for start, stop in self.intersect(first, end):
            if first < start:
                found.append((first, start))
            first = stop
        if first < end:
            found.append((first, end))
        return found

    def first_gap(self, position: int) -> int:
        """The lowest offset at or after `position` that is not in the set."""
        if self._parts is not None:
            return self._parts[bisect_right(self._minima, position)].first_gap(position)
        at = bisect_right(self._firsts, position) - 1
        return max(position, self._ends[at]) if at >= 0 else position

    def __contains__(self, offset: int) -> bool:
        return self.covers(offset, offset + 1)

    def __iter__(self) -> Iterator[Range]:
        if self._parts is not None:
            return iter([found for part in self._parts for found in part])
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
