"""OffsetRanges and OffsetMap against a plain set and a plain dict, whole and divided into parts."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import OffsetRanges
from linn.core.queue.offset_rows import lowest_of, ranges_of

OFFSETS = 40
RANGES = 100_000


class SmallRanges(OffsetRanges):
    """A set that is soon divided."""

    __slots__ = ()
    part_ranges_max = 4


class SmallMap(OffsetMap[int]):
    """A map that is soon divided."""

    __slots__ = ()
    part_ranges_max = 4


a_range = st.tuples(st.integers(0, OFFSETS - 1), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
changes = st.lists(st.tuples(st.booleans(), a_range), max_size=30)


def runs(offsets: set[int]) -> list[tuple[int, int]]:
    """The same set as ranges, made the slow way."""
    firsts = sorted(offset for offset in offsets if offset - 1 not in offsets)
    ends = sorted(offset + 1 for offset in offsets if offset + 1 not in offsets)
    return list(zip(firsts, ends, strict=True))


def check_parts(table) -> None:
    """Assert the law on parts: none is too large or too small, and each begins where the table says."""
    if table._parts is None:
        return
    sizes = [len(part._firsts) for part in table._parts]
    assert all(size <= table.part_ranges_max for size in sizes)
    assert all(size >= table.part_ranges_max // 4 for size in sizes)
    assert table._minima == [part._firsts[0] for part in table._parts[1:]]
    assert all(part._parts is None for part in table._parts)


@pytest.mark.parametrize("kind", [OffsetRanges, SmallRanges])
@given(changes, a_range)
def test_ranges_are_a_set_of_offsets(kind, steps, asked):
    ranges, plain = kind(), set()
    for adds, (first, end) in steps:
        if adds:
            ranges.add(first, end)
            plain |= set(range(first, end))
        else:
            ranges.remove(first, end)
            plain -= set(range(first, end))
        assert list(ranges) == runs(plain)
        assert ranges.count == len(plain)
        assert len(ranges) == len(runs(plain))
        check_parts(ranges)
    inside = plain & set(range(*asked))
    assert ranges.intersect(*asked) == runs(inside)
    assert ranges.gaps(*asked) == runs(set(range(*asked)) - plain)
    assert ranges.covers(*asked) == (len(inside) == asked[1] - asked[0])
    assert (asked[0] in ranges) == (asked[0] in plain)
    assert ranges.first_gap(asked[0]) == next(offset for offset in range(asked[0], 999) if offset not in plain)
    assert ranges == OffsetRanges(runs(plain))
    assert ranges.ranges_within(*asked) == len(runs(inside))


@pytest.mark.parametrize("kind", [OffsetMap, SmallMap])
@given(
    st.lists(st.tuples(st.sampled_from(["set", "take", "lowest", "from"]), a_range, st.integers(0, 2)), max_size=30),
    a_range,
)
def test_a_map_is_a_dict_of_offsets(kind, steps, asked):
    ranges = kind()
    plain: dict[int, int] = {}
    for step, (first, end), value in steps:
        if step == "set":
            ranges.set(first, end, value)
            plain.update(dict.fromkeys(range(first, end), value))
        elif step == "take":
            expected = {offset: plain.pop(offset) for offset in range(first, end) if offset in plain}
            assert flat(ranges.take(first, end)) == expected
        elif step == "from":
            behind = [offset for offset in plain if offset >= first]
            taken = ranges.take_from(first, end - first)
            assert (taken is None) == (not behind)
            if taken is not None:
                start, stop, found = taken
                assert start == min(behind)
                assert 0 < stop - start <= end - first
                assert [plain.pop(offset) for offset in range(start, stop)] == [found] * (stop - start)
        elif plain:
            start, stop, found = ranges.take_lowest(end - first)
            assert start == min(plain)
            assert stop - start <= end - first
            assert [plain.pop(offset) for offset in range(start, stop)] == [found] * (stop - start)
        assert flat(ranges) == plain
        assert ranges.count == len(plain)
        check_parts(ranges)
    pieces = list(ranges)
    assert all(left[1] < right[0] or left[2] != right[2] for left, right in pairwise(pieces))
    assert flat(ranges.pieces(*asked)) == {offset: plain[offset] for offset in range(*asked) if offset in plain}
    lowest = ranges.lowest(asked[1])
    assert lowest == pieces[: len(lowest)]
    held = [end - first for first, end, _ in lowest]
    assert sum(held) >= min(asked[1], len(plain)), "as many as were asked for"
    assert sum(held[:-1]) < asked[1], "and no range more"


def flat(pieces) -> dict[int, int]:
    return {offset: value for first, end, value in pieces for offset in range(first, end)}


def test_a_million_offsets_in_order_are_one_range():
    ranges = OffsetRanges()
    for first in range(0, 1_000_000, 1_000):
        ranges.add(first, first + 1_000)
    assert list(ranges) == [(0, 1_000_000)]


# --- many ranges ---


def many_ranges() -> OffsetRanges:
    """RANGES ranges of one offset, ten apart."""
    return OffsetRanges((first, first + 1) for first in range(0, 10 * RANGES, 10))


def many_values() -> OffsetMap[int]:
    """The same with values."""
    offsets: OffsetMap[int] = OffsetMap()
    offsets.set_rows([(first, first + 1, 0) for first in range(0, 10 * RANGES, 10)])
    return offsets


def columns_of(table) -> list[list[list[int]]]:
    return [[list(column) for column in part._slice(0, len(part._firsts))] for part in table._parts]


@pytest.mark.parametrize("offset", [5, 500_005, 10 * RANGES - 5, 10 * RANGES + 5])
@pytest.mark.parametrize("make", [many_ranges, many_values])
def test_a_change_of_many_ranges_moves_two_parts_of_them_at_most(make, offset):
    table = make()
    add = table.set if isinstance(table, OffsetMap) else table.add
    take = table.take if isinstance(table, OffsetMap) else table.remove
    value = (0,) if isinstance(table, OffsetMap) else ()
    for change in (
        lambda: add(offset, offset + 1, *value),
        lambda: add(offset - 4, offset + 5, *value),
        lambda: take(offset - 3, offset - 2),
        lambda: take(offset - 40, offset + 40),
    ):
        before = columns_of(table)
        change()
        moved = [part for part in columns_of(table) if part not in before]
        assert 1 <= len(moved) <= 2
        assert all(len(part[0]) <= table.part_ranges_max for part in moved)
        assert len(table) > RANGES - 100


def test_a_lookup_among_many_ranges_compares_few():
    ranges = many_ranges()

    class Compared(int):
        comparisons = 0

        def __lt__(self, other: int) -> bool:
            Compared.comparisons += 1
            return int(self) < other

        __gt__ = __lt__

    assert not ranges.covers(Compared(500_005), 500_006)
    assert 0 < Compared.comparisons <= 2 * RANGES.bit_length()


def test_a_table_that_shrinks_is_whole_again():
    ranges = many_ranges()
    assert len(ranges._parts) > 50
    ranges.remove(0, 10 * RANGES - 100)
    assert ranges._parts is None
    assert list(ranges) == [(first, first + 1) for first in range(10 * RANGES - 100, 10 * RANGES, 10)]
    assert ranges.count == 10


@pytest.mark.perf
def test_a_change_among_a_million_ranges_takes_less_than_20_microseconds():
    many = 1_000_000
    ranges = OffsetRanges((first, first + 1) for first in range(0, 10 * many, 10))
    rng = random.Random(1)
    offsets = [10 * rng.randrange(many) + 5 for _ in range(3_000)]
    for change in (ranges.add, ranges.remove, ranges.covers, ranges.intersect):
        began_s = time.perf_counter()
        for offset in offsets:
            change(offset, offset + 1)
        took_s = (time.perf_counter() - began_s) / len(offsets)
        assert took_s < 20e-6, f"{change.__name__} takes {1e6 * took_s:.1f} us"


@pytest.mark.parametrize("kind", [OffsetRanges, SmallRanges])
@given(st.sets(st.integers(0, OFFSETS)), st.sets(st.integers(0, OFFSETS), min_size=1))
def test_ranges_added_together_are_the_ranges_added_one_by_one(kind, before, added):
    ranges = kind(runs(before))
    ranges.add_rows(runs(added))
    assert list(ranges) == runs(before | added)
    assert ranges.count == len(before | added)
    check_parts(ranges)


@pytest.mark.parametrize("kind", [OffsetMap, SmallMap])
@given(st.dictionaries(st.integers(0, OFFSETS), st.integers(0, 2)), st.sets(st.integers(0, OFFSETS), min_size=1))
def test_the_pieces_within_ranges_are_the_values_of_their_offsets(kind, values, asked):
    table = kind()
    for offset, value in values.items():
        table.set(offset, offset + 1, value)
    firsts, ends = zip(*runs(asked), strict=True)
    pieces = table.pieces_within(firsts, ends)
    found = {offset: value for first, end, value in pieces for offset in range(first, end)}
    assert found == {offset: value for offset, value in values.items() if offset in asked}
    assert pieces == sorted(pieces)
    assert all(first < end for first, end, _ in pieces)


@given(st.sets(st.integers(0, OFFSETS)), st.integers(0, OFFSETS))
def test_the_lowest_offsets_of_ranges(offsets, count):
    assert ranges_of(sorted(offsets)) == runs(offsets)
    lowest = lowest_of(runs(offsets), count)
    assert [offset for first, end in lowest for offset in range(first, end)] == sorted(offsets)[:count]
