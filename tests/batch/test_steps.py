"""Sums of neighbouring offsets' distances, by one addition of big integers: as a loop would find them."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from linn.core.batch.column import any_step_over

SIZES = st.lists(st.tuples(*[st.integers(0, 40) | st.sampled_from([2**20, 2**29])] * 2), max_size=3)


@given(SIZES, st.integers(0, 80) | st.sampled_from([2**20, 2**29, 2**30, 2**31 - 1, 2**31, 2**40]))
def test_a_step_over_the_limit_is_found_wherever_it_is(sizes: list[tuple[int, int]], limit: int) -> None:
    columns = [array("i", accumulate((size[place] for size in sizes), initial=0)) for place in range(2)]
    largest = max([(b - a) + (d - c) for (a, b), (c, d) in zip(*map(pairwise, columns), strict=True)], default=0)
    assert any_step_over(limit, [memoryview(column).cast("B") for column in columns]) == (largest > limit)
