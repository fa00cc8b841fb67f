"""Records are shared out, and a producer that waits keeps its order, on many seeds."""

from __future__ import annotations

import pytest
from sharing_run import share


@pytest.mark.parametrize("seed", range(10))
def test_no_record_has_two_holders_and_none_overtakes(seed: int) -> None:
    share(seed)


@pytest.mark.soak(seeds=2000, chunk=40)
def test_the_same_holds_on_many_more_seeds(seeds: range) -> None:
    for seed in seeds:
        share(seed)
