"""Records are shared out, and a producer that waits keeps its order, on many seeds."""

from __future__ import annotations

import pytest
from sharing_run import share


@pytest.mark.parametrize("seed", range(10))
def test_nobody_has_what_another_has_and_nothing_overtakes(seed: int) -> None:
    share(seed)


@pytest.mark.soak(seeds=2000, chunk=40)
def test_so_it_is_on_many_more_seeds(seeds: range) -> None:
    for seed in seeds:
        share(seed)
