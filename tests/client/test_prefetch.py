"""The default prefetch of a queue's consumer: enough for its speed, and no more than it can process."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from linn.client.consume.prefetch import PREFETCH_FIRST, PREFETCH_MAX, AdaptivePrefetch


def run(cost_s: Callable[[int], float], records: int, *, lease_s: float = 30.0) -> tuple[AdaptivePrefetch, list[int]]:
    """An application that takes what there may be, one by one, and settles each; the windows that it saw."""
    now, taken, windows = 0.0, 0, []
    prefetch = AdaptivePrefetch(lease_s, now)
    while taken < records:
        for _ in range(prefetch.window):
            if prefetch.is_due:
                prefetch.adapt(now, 0)
            prefetch.handed(1)
            now += cost_s(taken)
            taken += 1
            prefetch.settled(1)
        prefetch.adapt(now, 0)
        windows.append(prefetch.window)
    return prefetch, windows


def test_a_consumer_begins_with_a_few_records() -> None:
    assert AdaptivePrefetch(30.0, 0.0).window == PREFETCH_FIRST == 4


@pytest.mark.parametrize(("cost_s", "most"), [(1e-6, 4_096), (0.0, 4_096), (0.001, 128), (0.012, 16), (0.09, 2)])
def test_the_window_is_a_tenth_of_a_second_of_work(cost_s: float, most: int) -> None:
    prefetch, _ = run(lambda _: cost_s, 20_000 if cost_s < 0.001 else 2_000)
    assert prefetch.window == most


@pytest.mark.parametrize("cost_s", [0.2, 1.0, 3_600.0])
def test_no_job_waits_behind_a_slow_one(cost_s: float) -> None:
    assert run(lambda _: cost_s, 20)[0].window == 1


def test_the_window_doubles_and_no_more() -> None:
    windows = [PREFETCH_FIRST, *run(lambda _: 1e-6, 20_000)[1]]
    assert all(after <= 4 * before for before, after in itertools.pairwise(windows))
    assert len(windows) > 5


def test_an_application_that_gets_slow_has_a_small_window_after_its_next_step() -> None:
    prefetch, _ = run(lambda _: 1e-6, 20_000)
    assert prefetch.window == PREFETCH_MAX
    prefetch.adapt(10_000.0, 0)
    prefetch.handed(1)
    prefetch.adapt(10_001.0, 0)
    assert prefetch.window == 1


def test_no_more_waits_than_is_done_in_a_tenth_of_a_short_lease() -> None:
    assert run(lambda _: 0.001, 2_000, lease_s=0.1)[0].window == 16  # 10 ms of work, and the next power of two.


def test_messages_in_the_applications_hands_come_on_top() -> None:
    prefetch = AdaptivePrefetch(30.0, 0.0)
    for step in range(1, 8):
        prefetch.handed(8)
        prefetch.settled(8)
        prefetch.adapt(float(step), with_application=50)
    assert prefetch.window == 64


def test_nothing_that_is_not_settled_makes_the_window_grow() -> None:
    prefetch = AdaptivePrefetch(30.0, 0.0)
    for step in range(20):
        prefetch.handed(4)
        prefetch.adapt(step / 1e6, with_application=4 * step)
    assert prefetch.window == PREFETCH_FIRST
    while prefetch.starved():
        pass
    assert prefetch.window == PREFETCH_MAX


def test_time_without_records_is_not_the_applications() -> None:
    prefetch = AdaptivePrefetch(30.0, 0.0)
    for hour in range(1, 20):
        prefetch.resumed(3_600.0 * hour)
        prefetch.handed(4)
        prefetch.settled(4)
        prefetch.adapt(3_600.0 * hour + 0.001, 0)
    assert prefetch.window >= 64
