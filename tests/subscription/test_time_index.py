"""Records by the time at which they are due."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.queue import time_index
from linn.core.queue.time_index import TimeIndex

ROWS = st.lists(st.tuples(st.integers(-5, 40), st.integers(0, 60)), min_size=1, max_size=12)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_index, "RUN_RECORDS", 8)
    monkeypatch.setattr(time_index, "SMALL_RUNS_MAX", 3)


def test_nothing_is_due_in_an_empty_index():
    index = TimeIndex()
    assert index.next_due_ms() is None
    assert index.take(1 << 60, 10) == []
    index.thin(lambda first, end: [])


def test_records_are_taken_at_their_times_in_the_order_of_their_offsets():
    index = TimeIndex()
    index.add([30, 10, 20], [100, 101, 102])
    index.add([10], [7])
    assert index.next_due_ms() == 10
    assert index.take(9, 10) == []
    assert index.take(20, 10) == [7, 101, 102]
    assert (len(index), index.next_due_ms(), index.end) == (1, 30, 103)


def test_no_more_are_taken_than_asked_for():
    index = TimeIndex()
    index.add(range(10), range(10, 20))
    assert index.take(100, 4) == [10, 11, 12, 13]
    assert index.next_due_ms() == 4


def test_offsets_may_lie_far_apart():
    index = TimeIndex()
    index.add([1, 2], [5, 1 << 40])
    assert index.take(2, 10) == [5, 1 << 40]


@settings(max_examples=200, deadline=None)
@given(
    batches=st.lists(ROWS, max_size=30), steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=20)
)
def test_it_gives_what_a_list_would_give(batches, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_index, "RUN_RECORDS", 8)
        patch.setattr(time_index, "SMALL_RUNS_MAX", 3)
        index, naive, now, base = TimeIndex(), list[tuple[int, int]](), 0, 0
        for batch in batches:
            rows = [(due, base + offset) for offset, due in {offset: due for due, offset in batch}.items()]
            base += 61
            index.add([due for due, _ in rows], [offset for _, offset in rows])
            naive += rows
            if steps:
                passed, most = steps.pop()
                now += passed
                taken = index.take(now, most)
                due = {offset for time, offset in naive if time <= now}
                assert len(taken) == min(most, len(due))
                assert taken == sorted(due & set(taken))
                naive = [row for row in naive if row[1] not in set(taken)]
            assert len(index) == len(naive)
            assert index.next_due_ms() == min((due for due, _ in naive), default=None)


def test_a_run_of_which_little_is_wanted_is_made_anew(small):
    index = TimeIndex()
    assert index.add(range(100, 108), range(8)), "it is large"
    index.thin(lambda first, end: [(first, end)])
    assert len(index) == 8
    index.thin(lambda first, end: [(2, 4)])
    assert len(index) == 2
    assert index.take(1_000, 10) == [2, 3]
    assert index.next_due_ms() is None


def test_settled_records_do_not_pile_up(small):
    index, rng, live, settled = TimeIndex(), random.Random(1), 20, [0]

    def unsettled(first: int, end: int) -> list[tuple[int, int]]:
        return [(max(first, settled[0]), end)] if end > settled[0] else []

    for offset in range(5_000):
        settled[0] = offset - live
        if index.add([offset + 100_000 + rng.randrange(50)], [offset]):
            index.thin(unsettled)
        assert len(index) < 20 * live


@settings(max_examples=200, deadline=None)
@given(
    batches=st.lists(ROWS, max_size=30), steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=20)
)
def test_records_are_taken_in_the_order_of_their_times_and_then_of_their_offsets(batches, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_index, "RUN_RECORDS", 8)
        patch.setattr(time_index, "SMALL_RUNS_MAX", 3)
        index, model, now_ms = TimeIndex(), [], 0
        for batch in batches:
            index.add([due_ms for due_ms, _ in batch], [offset for _, offset in batch])
            model = sorted([*model, *batch])
        for more_ms, records_max in steps:
            assert list(index.in_order()) == model
            now_ms += more_ms
            due = [row for row in model if row[0] <= now_ms][:records_max]
            assert index.take_in_order(now_ms, records_max) == due
            model = model[len(due) :]
            assert (len(index), index.next_due_ms()) == (len(model), model[0][0] if model else None)
