"""Random runs of exactly once over brokers: `transactions_over_brokers_run` says what is run, and what has to hold.

SIM_SEEDS=1000-1100 python -m pytest -m soak tests/cluster/test_transactions_under_faults.py
"""

from __future__ import annotations

import pytest
from seeds import failures
from transactions_over_brokers_run import TransactionsRun, run_seed

SEEDS = 5


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_record_has_its_effects_once_over_brokers_under_faults(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=5_000, chunk=20)
def test_each_record_has_its_effects_once_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/cluster/transactions_over_brokers_run.py") == {}


def test_the_seeds_differ_in_storage_rivals_and_aborts() -> None:
    runs = [TransactionsRun(seed) for seed in range(SEEDS)]
    assert {run.is_synced for run in runs} == {True, False}
    assert {run.has_rival for run in runs} == {True, False}
    assert {run.aborts_at for run in runs} == {0.0, 0.2}
