"""The subscription and its model agree on ways that follow from a seed."""

from __future__ import annotations

import pytest
from subscription_walk import walk

ORDERS = ("fifo", "priority", "key")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_subscription_agrees_with_its_model(seed: int, two_phase: bool, order: str) -> None:
    walk(seed, two_phase=two_phase, order=order)


@pytest.mark.soak(seeds=10_000, chunk=100)
def test_the_subscription_agrees_with_its_model_on_many_more_walks(seeds: range) -> None:
    for seed in seeds:
        walk(seed, two_phase=seed % 2 > 0, order=ORDERS[seed // 2 % 3])
