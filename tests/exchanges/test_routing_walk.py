"""Routers and their model agree on ways that follow from a seed."""

from __future__ import annotations

import pytest
from routing_walk import walk


@pytest.mark.parametrize("seed", range(20))
def test_routes_agree_with_the_model(seed: int) -> None:
    walk(seed)


@pytest.mark.soak(seeds=10_000, chunk=100)
def test_routes_agree_with_the_model_on_many_more_walks(seeds: range) -> None:
    for seed in seeds:
        walk(seed)
