"""The subscription and its model agree on ways that follow from a seed."""

from __future__ import annotations

import pytest
from subscription_walk import walk


@pytest.mark.parametrize("seed", range(20))
def test_the_subscription_is_what_its_model_is(seed: int) -> None:
    walk(seed)


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(100))
def test_the_subscription_is_what_its_model_is_on_many_more_ways(chunk: int) -> None:
    for seed in range(20 + 100 * chunk, 20 + 100 * (chunk + 1)):
        walk(seed)
