"""Exactly-once consumers under seeds: whatever dies, breaks or fills up, each record has its effect once.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/simulation/test_exactly_once.py

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed.
"""

from __future__ import annotations

import pytest
from exactly_once_run import run_seed
from seeds import failures, tiered

SEEDS = 50
QUICK_SEEDS = 5


@pytest.mark.parametrize("seed", tiered(range(SEEDS), QUICK_SEEDS))
def test_each_record_has_its_effect_once(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=50_000, chunk=250)
def test_each_record_has_its_effect_once_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/simulation/exactly_once_run.py") == {}
