"""A map changed by many ranges at once is the map changed by each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_rows import is_ascending

spans = st.lists(st.integers(0, 400), min_size=2, max_size=60, unique=True).map(sorted)
values = st.sampled_from(["a", "a", "b"])


def ranges(bounds: list[int]) -> list[tuple[int, int]]:
    """Ascending ranges, some of which touch."""
    return list(zip(bounds[::2], bounds[1::2], strict=False)) + ([(bounds[-1], 500)] if len(bounds) % 2 else [])


def map_of(rows: list[tuple[int, int, str]]) -> OffsetMap[str]:
    offsets: OffsetMap[str] = OffsetMap()
    for row in rows:
        offsets.set(*row)
    return offsets


def same(found: OffsetMap[str], expected: OffsetMap[str]) -> bool:
    return list(found) == list(expected) and found.count == expected.count


@given(st.data(), spans, spans)
def test_rows_are_removed_and_set_as_one_by_one(data, there, bounds):
    before = [(first, end, data.draw(values)) for first, end in ranges(there)]
    rows = [(first, end, data.draw(values)) for first, end in ranges(bounds)]
    if data.draw(st.booleans()):
        # One range through everything, and some that touch it.
        before.insert(0, (0, 450, "b"))
    found, expected = map_of(before), map_of(before)
    found.take_rows([first for first, _, _ in rows], [end for _, end, _ in rows])
    for first, end, _ in rows:
        expected.take(first, end)
    assert same(found, expected)
    found.set_rows(rows)
    for row in rows:
        expected.set(*row)
    assert same(found, expected)


def test_ranges_far_apart_in_a_long_map_are_changed_too():
    before = [(first, first + 1, "a") for first in range(0, 1_000, 2)]
    found, expected = map_of(before), map_of(before)
    rows = [(1, 3, "b"), (997, 999, "b")]
    found.take_rows([1, 997], [3, 999])
    found.set_rows(rows)
    for row in rows:
        expected.set(*row)
    assert same(found, expected)


def test_ascending_ranges_are_distinguished_from_overlapping_ones():
    assert is_ascending((0, 2, 5), (2, 4, 6))
    assert not is_ascending((0, 1), (2, 4))
    assert not is_ascending((2, 0), (3, 1))
