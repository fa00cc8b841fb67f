"""Each message of the producer protocol goes wrong in each way: nothing is stored twice, out of order, or not at all.

SIM_SEEDS=1000-2000 python -m pytest -m soak tests/broker/test_producer_arrows.py
"""

from __future__ import annotations

import pytest
from producer_arrows import walk
from seeds import failures, tiered

SEEDS = 50
QUICK_SEEDS = 5


@pytest.mark.parametrize("seed", tiered(range(SEEDS), QUICK_SEEDS))
def test_a_message_that_goes_wrong_leaves_no_duplicate_and_no_disorder(seed: int) -> None:
    walk(seed)


@pytest.mark.soak(seeds=20_000, chunk=250)
def test_the_same_in_many_more_runs(seeds: range) -> None:
    assert failures(walk, seeds, "tests/broker/producer_arrows.py") == {}
