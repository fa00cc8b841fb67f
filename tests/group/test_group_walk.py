"""A group and its model agree on ways that follow from a seed."""

from __future__ import annotations

import pytest
from group_walk import walk


@pytest.mark.parametrize("seed", range(50))
def test_the_group_agrees_with_its_model(seed: int) -> None:
    walk(seed)


@pytest.mark.soak(seeds=10_000, chunk=100)
def test_the_group_agrees_with_its_model_on_many_more_walks(seeds: range) -> None:
    for seed in seeds:
        walk(seed)
