"""A map from offsets to small equal values, kept as sorted, disjoint, half-open ranges [first, end).

Laws: touching ranges of equal value are one range, so traffic in whole batches keeps the map as small as the number of
differences between records. Lookup is O(log n) in the number of ranges, and a change moves no more than a part of them
(see `range_parts`). Values are compared with `==` and never changed. Many ranges set together have the same effect as
one by one: if they lie close together the map is changed once, in time proportional to them and the ranges between
them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from linn.core.queue.offset_rows import BETWEEN_MAX, inside, joined, outside
from linn.core.queue.range_parts import RangeParts

V = TypeVar("V")


class OffsetMap(RangeParts, Generic[V]):
    """A mutable map. `len` is the number of ranges, `count` the number of offsets that have a value."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        super().__init__()
        self._values: list[V] = []

    def _slice(self, low: int, high: int) -> tuple[Sequence[Any], ...]:
        return self._firsts[low:high], self._ends[low:high], self._values[low:high]

    def _append(self, firsts: Sequence[int], ends: Sequence[int], values: Sequence[V] = ()) -> None:
        super()._append(firsts, ends)
        self._values.extend(values)

    def set(self, first: int, end: int, value: V) -> None:
        """Set the value of every offset of [first, end), replacing earlier ones."""
        assert first < end
        if self._parts is not None:
            self._within(first, end, OffsetMap._set, first, end, value)
            return
        self._set(first, end, value)
        if len(self._firsts) > self.part_ranges_max:
            self._divide()

    def _set(self, first: int, end: int, value: V) -> None:
        firsts, ends, values = self._firsts, self._ends, self._values
        if firsts and first < ends[-1]:
            self._take(first, end)
        at = bisect_left(firsts, first)
        self.count += end - first
        joins_left = at > 0 and ends[at - 1] == first and values[at - 1] == value
        joins_right = at < len(firsts) and firsts[at] == end and values[at] == value
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del firsts[at], ends[at], values[at]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            firsts[at] = first
        else:
            firsts.insert(at, first)
            ends.insert(at, end)
            values.insert(at, value)

    def take(self, first: int, end: int) -> list[tuple[int, int, V]]:
        """Remove the values of [first, end); returns them as (first, end, value), in order."""
        if self._parts is not None:
            return self._within(first, end, OffsetMap._take, first, end)
        taken = self._take(first, end)
        if len(self._firsts) > self.part_ranges_max:
            self._divide()
        return taken

    def _take(self, first: int, end: int) -> list[tuple[int, int, V]]:
        taken = self.pieces(first, end)
        if not taken:
            return taken
        firsts, ends, values = self._firsts, self._ends, self._values
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end)
        left, right = firsts[low], ends[high - 1]
        del firsts[low:high], ends[low:high], values[low:high]
        if right > end:
            firsts.insert(low, end)
            ends.insert(low, right)
            values.insert(low, taken[-1][2])
        if left < first:
            firsts.insert(low, left)
            ends.insert(low, first)
            values.insert(low, taken[0][2])
        self.count -= sum([stop - start for start, stop, _ in taken])
        return taken

    def take_lowest(self, count_max: int) -> tuple[int, int, V]:
        """Remove up to `count_max` offsets from the front of the lowest range. The map must not be empty."""
        assert count_max > 0
        if self._parts is not None:
            first = self._parts[0]._firsts[0]
            return self._within(first, first, OffsetMap[V]._take_lowest, count_max)
        return self._take_lowest(count_max)

    def _take_lowest(self, count_max: int, /) -> tuple[int, int, V]:
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
        found = self._next(start)
        if found is None:
            return None
        first = max(start, found[0])
        return self.take(first, min(found[1], first + count_max))[0]

    def _next(self, start: int) -> tuple[int, int] | None:
        """The lowest range that reaches beyond `start`."""
        if self._parts is not None:
            at = bisect_left(self._minima, start)
            return next((found for part in self._parts[at : at + 2] if (found := part._next(start)) is not None), None)
        at = bisect_right(self._ends, start)
        return (self._firsts[at], self._ends[at]) if at < len(self._firsts) else None

    def pieces(self, first: int, end: int) -> list[tuple[int, int, V]]:
        """The parts of [first, end) that have a value, as (first, end, value), in order."""
        if self._parts is not None:
            return [piece for part in self._meeting(first, end) for piece in part.pieces(first, end)]
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        return [(max(first, self._firsts[at]), min(end, self._ends[at]), self._values[at]) for at in range(low, high)]

    def lowest(self, count: int) -> list[tuple[int, int, V]]:
        """The lowest ranges, whole, until they hold `count` offsets, or all. Examines no others."""
        found: list[tuple[int, int, V]] = []
        tables = [self] if self._parts is None else self._parts
        for piece in chain.from_iterable(zip(part._firsts, part._ends, part._values, strict=True) for part in tables):
            if count <= 0:
                break
            found.append(piece)
            count -= piece[1] - piece[0]
        return found

    def pieces_within(self, firsts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int, V]]:
        """The parts of ascending ranges, at least one, that have a value, as (first, end, value), in order."""
        between = self.ranges_within(firsts[0], ends[-1])
        if not between:
            return []
        if between > BETWEEN_MAX * len(firsts):
            return [piece for first, end in zip(firsts, ends, strict=True) for piece in self.pieces(first, end)]
        return inside(self.pieces(firsts[0], ends[-1]), firsts, ends)

    def take_rows(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Remove the values of ascending ranges, at least one."""
        between = self.ranges_within(firsts[0], ends[-1])
        if not between:
            return
        if between > BETWEEN_MAX * len(firsts):
            for first, end in zip(firsts, ends, strict=True):
                self.take(first, end)
        elif self._parts is not None:
            self._within(firsts[0], ends[-1], OffsetMap._take_rows, firsts, ends)
        else:
            self._take_rows(firsts, ends)
            if len(self._firsts) > self.part_ranges_max:
                self._divide()

    def _take_rows(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        low = bisect_right(self._ends, firsts[0])
        high = bisect_left(self._firsts, ends[-1])
        self._replace(low, high, outside(self._between(low, high), firsts, ends))

    def set_rows(self, rows: list[tuple[int, int, V]]) -> None:
        """Set the values of ascending ranges, at least one. None of their offsets may have a value."""
        first, end = rows[0][0], rows[-1][1]
        if self.ranges_within(first, end) > BETWEEN_MAX * len(rows):
            for row in rows:
                self.set(*row)
        elif self._parts is not None:
            self._within(first, end, OffsetMap._set_rows, rows)
        else:
            self._set_rows(rows)
            if len(self._firsts) > self.part_ranges_max:
                self._divide()

    def _set_rows(self, rows: list[tuple[int, int, V]]) -> None:
        # One more on either side, because it may touch.
        low = max(bisect_left(self._firsts, rows[0][0]) - 1, 0)
        high = bisect_left(self._firsts, rows[-1][0]) + 1
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
        behind = self._slice(high, len(self._firsts))
        del self._firsts[low:], self._ends[low:], self._values[low:]
        self._append(firsts, ends, values)
        self._append(*behind)
        self.count += sum(ends) - sum(firsts)

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        if self._parts is not None:
            return iter([found for part in self._parts for found in part])
        return iter(list(zip(self._firsts, self._ends, self._values, strict=True)))
