"""Transactions under seeds: whatever dies, breaks or fills up, they take effect whole, once, or not at all.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/simulation/test_simulated_transactions.py

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed.
"""

from __future__ import annotations

import pytest
from seeds import failures, tiered
from transactions_run import run_seed

SEEDS = 50
QUICK_SEEDS = 5


@pytest.mark.parametrize("seed", tiered(range(SEEDS), QUICK_SEEDS))
def test_transactions_take_effect_whole_or_not_at_all(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=50_000, chunk=250)
def test_transactions_take_effect_whole_or_not_at_all_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/simulation/transactions_run.py") == {}
