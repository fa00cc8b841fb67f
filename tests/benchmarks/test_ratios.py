"""The statistics of rounds: ratios within a round, their median and spread."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.peers.ratios import Ratio, quantile, ratio, shuffled, stands_still

RATES = st.dictionaries(st.integers(1, 9), st.floats(1.0, 1e7), min_size=1)


def test_a_ratio_is_of_two_rates_of_one_round_and_the_figure_is_the_median() -> None:
    found = ratio({1: 10.0, 2: 40.0, 3: 90.0}, {1: 10.0, 2: 20.0, 3: 30.0})
    assert found == Ratio(2.0, 1.0, 3.0, 3)


def test_what_slows_a_whole_round_down_changes_no_ratio() -> None:
    fast, slow = {1: 100.0, 2: 300.0}, {1: 50.0, 2: 150.0}
    half = {1: 100.0, 2: 150.0}, {1: 50.0, 2: 75.0}
    assert ratio(*half) == ratio(fast, slow) == Ratio(2.0, 2.0, 2.0, 2)


def test_a_round_that_one_system_lacks_does_not_count() -> None:
    assert ratio({1: 10.0, 2: 99.0}, {1: 5.0, 3: 1.0}) == Ratio(2.0, 2.0, 2.0, 1)
    assert ratio({1: 10.0}, {2: 5.0}) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RATES, RATES)
def test_the_inverse_is_the_ratio_of_the_other_system(rates: dict[int, float], others: dict[int, float]) -> None:
    found, other = ratio(rates, others), ratio(others, rates)
    assert (found is None) == (other is None)
    if found is not None and other is not None:
        assert found.least <= found.median <= found.greatest
        assert (found.inverse.least, found.inverse.greatest) == pytest.approx((other.least, other.greatest))
        if found.rounds % 2:  # The median of an even number is a mean of two, and the inverse of a mean is another.
            assert found.inverse.median == pytest.approx(other.median)


def test_rates_stand_still_when_the_last_three_lie_within_a_tenth() -> None:
    assert stands_still([10.0, 50.0, 100.0, 103.0, 97.0])
    assert not stands_still([100.0, 100.0])
    assert not stands_still([100.0, 100.0, 100.0, 120.0])
    assert not stands_still([80.0, 90.0, 100.0, 110.0, 120.0])


def test_the_order_is_that_of_its_seed_and_neighbours_change_with_it() -> None:
    names = [*"abcdef"]
    orders = [shuffled(names, f"work {number}") for number in range(1, 6)]
    assert orders == [shuffled(names, f"work {number}") for number in range(1, 6)]
    assert all(sorted(order) == names for order in orders)
    assert len({order[order.index("a") - 1] for order in orders if order[0] != "a"}) > 1
    assert shuffled([], "work") == []


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile(list(range(100)), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert quantile([7.0], 0.99) == 7.0
