"""A map from offsets to small equal values, kept as sorted, disjoint, half-open ranges [first, end).

Laws: touching ranges of equal value are one range, so traffic in whole batches keeps the map as small as the number of
differences between records. Lookup is O(log n) in the number of ranges. Values are compared with `==` and never
changed. Many ranges set together have the same effect as one by one: if they lie close together the map is changed
once, in time proportional to them and the ranges between them, not to the map.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from linn.core.queue.offset_rows import joined, outside

V = TypeVar("V")

_BETWEEN_MAX = 4
"""Ranges of the map, per given range, up to which a scan replaces single lookups."""


class OffsetMap(Generic[V]):
    """A mutable map. `len` is the number of ranges, `count` the number of offsets that have a value."""

    __slots__ = ("_ends", "_firsts", "_values", "count")

    count: int
    """The number of offsets that have a value. Read only."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._values: list[V] = []
        self.count = 0

    def set(self, first: int, end: int, value: V) -> None:
        """Set the value of every offset of [first, end), replacing earlier ones."""
        assert first < end
        if self._firsts and first < self._ends[-1]:
            self.take(first, end)
        at = bisect_left(self._firsts, first)
        self.count += end - first
        low, high = at, at
        if at > 0 and self._ends[at - 1] == first and self._values[at - 1] == value:
            low, first = at - 1, self._firsts[at - 1]
        if at < len(self._firsts) and self._firsts[at] == end and self._values[at] == value:
            high, end = at + 1, self._ends[at]
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]
        self._values[low:high] = [value]

    def take(self, first: int, end: int) -> list[tuple[int, int, V]]:
        """Remove the values of [first, end); returns them as (first, end, value), in order."""
        taken = self.pieces(first, end)
        if not taken:
            return taken
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        left, right = self._firsts[low], self._ends[high - 1]
        kept: list[tuple[int, int, V]] = []
        if left < first:
            kept.append((left, first, taken[0][2]))
        if right > end:
            kept.append((end, right, taken[-1][2]))
        self._firsts[low:high] = [piece[0] for piece in kept]
        self._ends[low:high] = [piece[1] for piece in kept]
        self._values[low:high] = [piece[2] for piece in kept]
        self.count -= sum(piece[1] - piece[0] for piece in taken)
        return taken

    def take_lowest(self, count_max: int) -> tuple[int, int, V]:
        """Remove up to `count_max` offsets from the front of the lowest range. The map must not be empty."""
        assert count_max > 0
        first, end, value = self._firsts[0], self._ends[0], self._values[0]
        if end - first > count_max:
            end = first + count_max
            self._firsts[0] = end
        else:
            del self._firsts[0], self._ends[0], self._values[0]
        self.count -= end - first
        return first, end, value

    def take_from(self, start: int, count_max: int) -> tuple[int, int, V] | None:
        """Remove up to `count_max` offsets from the front of the lowest range that reaches beyond `start`."""
        at = bisect_right(self._ends, start)
        if at == len(self._firsts):
            return None
        first = max(start, self._firsts[at])
        return self.take(first, min(self._ends[at], first + count_max))[0]

    def pieces(self, first: int, end: int) -> list[tuple[int, int, V]]:
        """The parts of [first, end) that have a value, as (first, end, value), in order."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        return [(max(first, self._firsts[at]), min(end, self._ends[at]), self._values[at]) for at in range(low, high)]

    def lowest(self, count: int) -> list[tuple[int, int, V]]:
        """The lowest ranges, whole, until they hold `count` offsets, or all. Looks at no others."""
        found: list[tuple[int, int, V]] = []
        for piece in zip(self._firsts, self._ends, self._values, strict=True):
            if count <= 0:
                break
            found.append(piece)
            count -= piece[1] - piece[0]
        return found

    def take_rows(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Remove the values of ascending ranges, at least one."""
        low = bisect_right(self._ends, firsts[0])
        high = bisect_left(self._firsts, ends[-1])
        if low >= high:
            return
        if high - low > _BETWEEN_MAX * len(firsts):
            for first, end in zip(firsts, ends, strict=True):
                self.take(first, end)
            return
        self._replace(low, high, outside(self._between(low, high), firsts, ends))

    def set_rows(self, rows: list[tuple[int, int, V]]) -> None:
        """Set the values of ascending ranges, at least one. None of their offsets may have a value."""
        low = bisect_left(self._firsts, rows[0][0])
        high = bisect_left(self._firsts, rows[-1][1])
        if high - low > _BETWEEN_MAX * len(rows):
            for first, end, value in rows:
                self.set(first, end, value)
            return
        # One more on either side, because it may touch.
        low, high = max(low - 1, 0), high + 1
        pieces = self._between(low, high)
        # Ranges that don't overlap differ in where they begin: values are never compared.
        self._replace(low, low + len(pieces), joined(sorted(pieces + rows)))

    def _between(self, low: int, high: int) -> list[tuple[int, int, V]]:
        """The ranges from index `low` to `high`."""
        return list(zip(self._firsts[low:high], self._ends[low:high], self._values[low:high], strict=True))

    def _replace(self, low: int, high: int, pieces: list[tuple[int, int, V]]) -> None:
        """Put pieces in the place of the ranges from index `low` to `high`."""
        self.count += sum(self._firsts[low:high]) - sum(self._ends[low:high])
        firsts, ends, values = zip(*pieces, strict=True) if pieces else ((), (), ())
        self._firsts[low:high] = firsts
        self._ends[low:high] = ends
        self._values[low:high] = values
        self.count += sum(ends) - sum(firsts)

    def clear(self) -> None:
        """Remove all values."""
        self._firsts.clear()
        self._ends.clear()
        self._values.clear()
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        return iter(list(zip(self._firsts, self._ends, self._values, strict=True)))

    def __len__(self) -> int:
        return len(self._firsts)

    def __repr__(self) -> str:
        return f"OffsetMap({list(self)})"
