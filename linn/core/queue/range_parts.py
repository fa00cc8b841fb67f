"""Sorted, disjoint, half-open ranges [first, end) in columns, divided into parts where there are many.

Laws: up to `part_ranges_max` ranges are in lists. More are in parts: tables of their own, with arrays for columns, each
of no more than so many ranges and no less than a quarter. So a lookup is O(log n), and a change moves a part of the
ranges and not all that lie behind it. A part is never divided itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class RangeParts:
    """A table of ranges: its columns, or else its parts. `len` is the number of ranges."""

    __slots__ = ("_ends", "_firsts", "_minima", "_parts", "count")

    part_ranges_max: ClassVar = 1_024
    """Limit of the ranges in one part: to move so many takes less time than to find the place for one more."""
    count: int
    """The number of offsets in all ranges. Read only. Of a part: only how it changes means something."""

    def __init__(self) -> None:
        self._parts: list[Self] | None = None
        """None: the ranges are in the columns."""
        self._minima: list[int]
        """The lowest offset of each part but the first."""
        self._firsts: list[int] | array[int] = []
        self._ends: list[int] | array[int] = []
        self.count = 0

    # --- columns, to be extended where there are more ---

    def _slice(self, low: int, high: int) -> tuple[Sequence[Any], ...]:
        """The ranges from index `low` to `high`, as columns."""
        return self._firsts[low:high], self._ends[low:high]

    def _append(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Append columns of ranges that lie behind all others."""
        self._firsts.extend(firsts)
        self._ends.extend(ends)

    def ranges_within(self, first: int, end: int) -> int:
        """The number of ranges that meet [first, end)."""
        if self._parts is not None:
            return sum([part.ranges_within(first, end) for part in self._meeting(first, end)])
        return max(0, bisect_left(self._firsts, end) - bisect_right(self._ends, first))

    def clear(self) -> None:
        """Remove everything."""
        self.__init__()  # type: ignore[misc] # Each class has what its own makes.

    # --- parts ---

    def _within(
        self, first: int, end: int, change: Callable[Concatenate[Self, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Change the one part with all ranges that [first, end) meets or touches; several are joined before."""
        assert self._parts is not None
        at, last = bisect_left(self._minima, first), bisect_right(self._minima, end)
        if at < last:
            self._join(at, last)
        part = self._parts[at]
        before = part.count
        result = change(part, *args, **kwargs)
        self.count += part.count - before
        self._fit(at)
        return result

    def _meeting(self, first: int, end: int) -> list[Self]:
        """The parts that may have ranges in [first, end)."""
        assert self._parts is not None
        return self._parts[bisect_left(self._minima, first) : bisect_right(self._minima, end) + 1]

    def _divide(self: Self) -> None:
        """Divide the columns into parts: there are too many ranges."""
        whole = self._part(0, len(self._firsts))
        count = self.count
        self.clear()
        self.count = count
        self._parts, self._minima = [whole], []
        self._fit(0)

    def _fit(self, at: int) -> None:
        """Keep the law on sizes after a change of one part."""
        parts, minima = self._parts, self._minima
        assert parts is not None
        size = len(parts[at]._firsts)
        if size < self.part_ranges_max // 4:
            if len(parts) > 1:
                at = max(at - 1, 0)
                self._join(at, at + 1)
                size = len(parts[at]._firsts)
            else:
                self._undivide()
                return
        if size > self.part_ranges_max:
            whole, count = parts[at], -(-2 * size // self.part_ranges_max)
            bounds = [size * index // count for index in range(count + 1)]
            parts[at : at + 1] = [whole._part(low, high) for low, high in pairwise(bounds)]
            minima[at:at] = [part._firsts[0] for part in parts[at + 1 : at + count]]
        if at:
            minima[at - 1] = parts[at]._firsts[0]

    def _part(self, low: int, high: int) -> Self:
        """The ranges from index `low` to `high`, as a part."""
        part = type(self)()
        part._firsts, part._ends = array("q"), array("q")
        part._append(*self._slice(low, high))
        return part

    def _join(self, at: int, last: int) -> None:
        """Make one part of those from index `at` to `last`, however large."""
        parts, minima = self._parts, self._minima
        assert parts is not None
        for part in parts[at + 1 : last + 1]:
            parts[at]._append(*part._slice(0, len(part._firsts)))
        del parts[at + 1 : last + 1]
        del minima[at:last]

    def _undivide(self) -> None:
        """Make columns of the only part, which is small."""
        assert self._parts is not None
        columns, count = self._parts[0]._slice(0, self.part_ranges_max), self.count
        self.clear()
        self._append(*columns)
        self.count = count

    def __len__(self) -> int:
        return len(self._firsts) if self._parts is None else sum([len(part._firsts) for part in self._parts])

    def __bool__(self) -> bool:
        return self.count > 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"  # type: ignore[call-overload]
