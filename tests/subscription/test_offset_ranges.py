"""OffsetRanges and OffsetMap against a plain set and a plain dict."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import OffsetRanges

OFFSETS = 40
a_range = st.tuples(st.integers(0, OFFSETS - 1), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
changes = st.lists(st.tuples(st.booleans(), a_range), max_size=30)


def runs(offsets: set[int]) -> list[tuple[int, int]]:
    """The same set as ranges, made the slow way."""
    firsts = sorted(offset for offset in offsets if offset - 1 not in offsets)
    ends = sorted(offset + 1 for offset in offsets if offset + 1 not in offsets)
    return list(zip(firsts, ends, strict=True))


@given(changes, a_range)
def test_ranges_are_a_set_of_offsets(steps, asked):
    ranges, plain = OffsetRanges(), set()
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
    inside = plain & set(range(*asked))
    assert ranges.intersect(*asked) == runs(inside)
    assert ranges.gaps(*asked) == runs(set(range(*asked)) - plain)
    assert ranges.covers(*asked) == (len(inside) == asked[1] - asked[0])
    assert (asked[0] in ranges) == (asked[0] in plain)
    assert ranges.first_gap(asked[0]) == next(offset for offset in range(asked[0], 999) if offset not in plain)
    assert ranges == OffsetRanges(runs(plain))


@given(
    st.lists(st.tuples(st.sampled_from(["set", "take", "lowest"]), a_range, st.integers(0, 2)), max_size=30), a_range
)
def test_a_map_is_a_dict_of_offsets(steps, asked):
    ranges: OffsetMap[int] = OffsetMap()
    plain: dict[int, int] = {}
    for step, (first, end), value in steps:
        if step == "set":
            ranges.set(first, end, value)
            plain.update(dict.fromkeys(range(first, end), value))
        elif step == "take":
            expected = {offset: plain.pop(offset) for offset in range(first, end) if offset in plain}
            assert flat(ranges.take(first, end)) == expected
        elif plain:
            start, stop, found = ranges.take_lowest(end - first)
            assert start == min(plain)
            assert stop - start <= end - first
            assert [plain.pop(offset) for offset in range(start, stop)] == [found] * (stop - start)
        assert flat(ranges) == plain
        assert ranges.count == len(plain)
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
