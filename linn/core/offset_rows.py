"""Changing an `OffsetMap` by many ranges at once, in ascending order: what a replay of thousands of rows needs.

Laws: the result is what `take` and `set` give, called for each range. Where the ranges lie close together the map is
changed once, in time that follows from them and what lies between them, not from the map; where they are far apart
each is changed by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import le
from typing import TypeVar

from linn.core.offset_map import OffsetMap

V = TypeVar("V")

_BETWEEN_MAX = 4
"""How many ranges of the map, for each one given, are gone through rather than looked for one by one."""


def is_ascending(firsts: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether ranges, none of them empty, are in order and do not overlap."""
    return all(map(le, ends, islice(firsts, 1, None)))


def remove_rows(offsets: OffsetMap[V], firsts: Sequence[int], ends: Sequence[int]) -> None:
    """Remove the values of ascending ranges."""
    low = bisect_right(offsets._ends, firsts[0])
    high = bisect_left(offsets._firsts, ends[-1])
    if low >= high:
        return
    if high - low > _BETWEEN_MAX * len(firsts):
        for first, end in zip(firsts, ends, strict=True):
            offsets.take(first, end)
        return
    pieces = list(zip(offsets._firsts[low:high], offsets._ends[low:high], offsets._values[low:high], strict=True))
    _replace(offsets, low, high, _outside(pieces, firsts, ends))


def set_rows(offsets: OffsetMap[V], rows: list[tuple[int, int, V]]) -> None:
    """Give ascending ranges their values. None of them may have one."""
    low = bisect_left(offsets._firsts, rows[0][0])
    high = bisect_left(offsets._firsts, rows[-1][1])
    if high - low > _BETWEEN_MAX * len(rows):
        for first, end, value in rows:
            offsets.set(first, end, value)
        return
    # One more on either side, because it may touch.
    low, high = max(low - 1, 0), high + 1
    pieces = list(zip(offsets._firsts[low:high], offsets._ends[low:high], offsets._values[low:high], strict=True))
    # Ranges that don't overlap differ in where they begin: values are never compared.
    _replace(offsets, low, low + len(pieces), _joined(sorted(pieces + rows)))


def _replace(offsets: OffsetMap[V], low: int, high: int, pieces: list[tuple[int, int, V]]) -> None:
    """Put pieces in the place of the ranges from index `low` to `high`."""
    offsets.count += sum(offsets._firsts[low:high]) - sum(offsets._ends[low:high])
    firsts, ends, values = zip(*pieces, strict=True) if pieces else ((), (), ())
    offsets._firsts[low:high] = firsts
    offsets._ends[low:high] = ends
    offsets._values[low:high] = values
    offsets.count += sum(ends) - sum(firsts)


def _outside(pieces: list[tuple[int, int, V]], firsts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int, V]]:
    """What of the pieces lies in none of the ranges."""
    kept: list[tuple[int, int, V]] = []
    at, count = 0, len(firsts)
    for first, end, value in pieces:
        while at < count and firsts[at] < end:
            if first < firsts[at]:
                kept.append((first, firsts[at], value))
            first = max(first, ends[at])
            if first >= end:
                break  # The range may go on in the next piece.
            at += 1
        if first < end:
            kept.append((first, end, value))
    return kept


def _joined(pieces: list[tuple[int, int, V]]) -> list[tuple[int, int, V]]:
    """The same with touching pieces of equal value in one."""
    joined: list[tuple[int, int, V]] = []
    open_first, open_end, open_value = pieces[0]
    for first, end, value in islice(pieces, 1, None):
        if first == open_end and value == open_value:
            open_end = end
        else:
            joined.append((open_first, open_end, open_value))
            open_first, open_end, open_value = first, end, value
    joined.append((open_first, open_end, open_value))
    return joined
