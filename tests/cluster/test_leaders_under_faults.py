"""Random runs of Python clients that go to leaders: `leaders_run` says what is run, and what has to hold.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/cluster/test_leaders_under_faults.py

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed.
"""

from __future__ import annotations

import pytest
from leaders_run import run_seed
from seeds import failures

SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_clients_lose_repeat_and_reorder_nothing_while_leaders_change(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=5_000, chunk=25)
def test_clients_lose_repeat_and_reorder_nothing_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/cluster/leaders_run.py") == {}
