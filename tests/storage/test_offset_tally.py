"""Counts of marked offsets: exact for any ranges up to a limit, near beyond it, and in bounded memory always."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from linn.core.log.offset_tally import RANGES_MAX, OffsetTally

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=30)


def check_all(tally: OffsetTally, marked: set[int], end: int) -> None:
    for first in range(end):
        assert tally.count(first, end) == sum(first <= offset < end for offset in marked), first
        assert tally.count(0, first) == sum(offset < first for offset in marked), first


@given(RANGES, RANGES, st.integers(0, 70))
def test_counts_are_those_of_a_set_whatever_the_order_and_the_overlaps(
    ranges: list[tuple[int, int]], more: list[tuple[int, int]], start: int
) -> None:
    tally, other, marked = OffsetTally(), OffsetTally(), set[int]()
    for each, added in ((tally, ranges), (other, more)):
        for first, length in added:
            each.add(first, first + length)
            marked.update(range(first, first + length))
    tally.merge(other)
    check_all(tally, marked, 70)
    exact = [offset for first, end in tally.exact(0) for offset in range(first, end)]
    assert exact == sorted(marked), "ascending, and each once"
    assert tally.count(5, 5) == tally.count(6, 5) == 0
    check_all(OffsetTally(tally), marked, 70)
    tally.forget_before(start)
    assert tally.count(start, 70) == sum(offset >= start for offset in marked)


def test_beyond_the_limit_counts_are_near_and_the_newest_are_exact() -> None:
    """Transactions of 1 to 20 records, whose markers are marked; some are aborted."""
    rng, tally, marked, end = Random(1), OffsetTally(), list[int](), 0
    for _ in range(30_000):
        first = end + rng.randint(1, 20)
        start, end = (first, first + 1) if rng.random() < 0.9 else (first - 1, first + 1)
        tally.add(start, end)
        marked += range(start, end)
        assert len(tally) <= RANGES_MAX
    assert tally.count(0, end) == len(marked)
    newest = tally.exact(0)[-1000][0]
    offsets = set(marked)
    left = len(marked)
    for first in range(end):
        if first % 17 == 0 or first >= newest:
            counted = tally.count(first, end)
            assert abs(counted - left) <= (0 if first >= newest else len(marked) // 500)
            assert (counted < end - first) == (left < end - first), "there is a record left, or there is none"
        left -= first in offsets


def test_ranges_that_are_inserted_below_the_newest_count_as_well() -> None:
    """A transaction is aborted after ten thousand others."""
    tally = OffsetTally()
    for offset in range(0, 50_000, 5):
        tally.add(offset, offset + 1)
    tally.add(1, 3)
    tally.add(40_001, 40_004)
    assert tally.count(0, 50_000) == 10_005
    assert tally.count(0, 4) in (3, 2, 1)
    assert tally.count(40_000, 40_005) == 4
