"""A whole broker under seeds: whatever dies, breaks or fills up, what it promised holds.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/simulation/test_crashes.py

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed. What fails names its seed and how to
replay it.
"""

from __future__ import annotations

import pytest
from seeds import failures, tiered
from simulated_run import run_seed

SEEDS = 50
QUICK_SEEDS = 5


@pytest.mark.parametrize("seed", tiered(range(SEEDS), QUICK_SEEDS))
def test_promises_hold_under_all_faults(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=50_000, chunk=250)
def test_promises_hold_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/simulation/simulated_run.py") == {}
