"""Rows: many non-empty ranges of offsets in ascending order, processed together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import le
from typing import TypeVar

from linn.core.batch.batch import RecordBatch

V = TypeVar("V")

BETWEEN_MAX = 4
"""Stored ranges, per given row, up to which one scan replaces single lookups."""


def is_ascending(firsts: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether non-empty ranges are in order and do not overlap."""
    return all(map(le, ends, islice(firsts, 1, None)))


def outside(pieces: list[tuple[int, int, V]], firsts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int, V]]:
    """The parts of `pieces` that lie in none of the ranges."""
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


def inside(pieces: list[tuple[int, int, V]], firsts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int, V]]:
    """The parts of `pieces` that lie in one of the ranges."""
    found: list[tuple[int, int, V]] = []
    at, count = 0, len(firsts)
    for first, end, value in pieces:
        while at < count and ends[at] <= first:
            at += 1
        while at < count and firsts[at] < end:
            found.append((max(first, firsts[at]), min(end, ends[at]), value))
            if ends[at] > end:
                break  # The range may go on in the next piece.
            at += 1
    return found


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of ascending offsets."""
    found: list[tuple[int, int]] = []
    if not offsets:
        return found
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(offsets[0], offsets[-1] + 1)]
    first = end = offsets[0]
    for offset in offsets:
        if offset != end:
            found.append((first, end))
            first = offset
        end = offset + 1
    found.append((first, end))
    return found


def lowest_of(ranges: Sequence[tuple[int, int]], count_max: int) -> list[tuple[int, int]]:
    """The lowest `count_max` offsets of ascending ranges."""
    found: list[tuple[int, int]] = []
    for first, end in ranges:
        if count_max <= 0:
            break
        found.append((first, min(end, first + count_max)))
        count_max -= found[-1][1] - first
    return found


def joined(pieces: list[tuple[int, int, V]]) -> list[tuple[int, int, V]]:
    """The same pieces, with touching ones of equal value joined."""
    found: list[tuple[int, int, V]] = []
    open_first, open_end, open_value = pieces[0]
    for first, end, value in islice(pieces, 1, None):
        if first == open_end and value == open_value:
            open_end = end
        else:
            found.append((open_first, open_end, open_value))
            open_first, open_end, open_value = first, end, value
    found.append((open_first, open_end, open_value))
    return found


def uncovered(batches: Iterable[RecordBatch], first: int, end: int) -> list[tuple[int, int]]:
    """The offsets of [first, end) that none of the ascending batches covers."""
    found: list[tuple[int, int]] = []
    for batch in batches:
        if batch.base_offset >= end:
            break
        if first < batch.base_offset:
            found.append((first, batch.base_offset))
        first = max(first, batch.end_offset)
    if first < end:
        found.append((first, end))
    return found
