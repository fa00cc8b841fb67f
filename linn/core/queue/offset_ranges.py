"""A set of offsets, kept as sorted, disjoint, half-open ranges [first, end).

Laws: ranges never overlap and never touch (touching ones are one range), so the size of the set is the number of its
gaps and not the number of its offsets. Lookup is O(log n) in the number of ranges; a change at the end is O(1), a
change elsewhere moves the list's tail in memory. Ranges given to it must not be empty; that is asserted, so input from
a peer is checked before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""(first, end): the offsets first to end-1."""


class OffsetRanges:
    """A mutable set of offsets. `len` is the number of ranges, `count` the number of offsets."""

    __slots__ = ("_ends", "_firsts", "count")

    count: int
    """The number of offsets in the set. Read only."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        for first, end in ranges:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add the offsets of [first, end); some may be in the set already."""
        assert first < end
        firsts, ends = self._firsts, self._ends
        if not ends or first > ends[-1]:
            firsts.append(first)
            ends.append(end)
            self.count += end - first
            return
        if first == ends[-1]:
            ends[-1] = end
            self.count += end - first
            return
        self._merge(first, end)

    def _merge(self, first: int, end: int) -> None:
        """Add a range that lies before, within or across existing ranges."""
        firsts, ends = self._firsts, self._ends
        low = bisect_left(ends, first)
        high = bisect_right(firsts, end)
        if low < high:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
            self.count -= sum(ends[low:high]) - sum(firsts[low:high])
        firsts[low:high] = [first]
        ends[low:high] = [end]
        self.count += end - first

    def remove(self, first: int, end: int) -> None:
        """Remove the offsets of [first, end); some may not be in the set."""
        assert first < end
        firsts, ends = self._firsts, self._ends
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end)
        if low >= high:
            return
        left, right = firsts[low], ends[high - 1]
        self.count -= sum(ends[low:high]) - sum(firsts[low:high])
        kept_firsts: list[int] = []
        kept_ends: list[int] = []
        if left < first:
            kept_firsts.append(left)
            kept_ends.append(first)
            self.count += first - left
        if right > end:
            kept_firsts.append(end)
            kept_ends.append(right)
            self.count += right - end
        firsts[low:high] = kept_firsts
        ends[low:high] = kept_ends

    def covers(self, first: int, end: int) -> bool:
        """Whether every offset of [first, end) is in the set."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and end <= self._ends[at]

    def intersect(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are in the set, in order."""
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
        at = bisect_right(self._firsts, position) - 1
        return max(position, self._ends[at]) if at >= 0 else position

    def __contains__(self, offset: int) -> bool:
        return self.covers(offset, offset + 1)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    def __len__(self) -> int:
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._firsts == other._firsts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OffsetRanges({list(self)})"
