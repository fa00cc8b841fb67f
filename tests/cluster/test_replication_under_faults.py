"""Random runs of whole brokers under all faults: `cluster_run` says what is run, and what has to hold.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/cluster

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed.
"""

from __future__ import annotations

import pytest
from cluster_run import ClusterRun, run_seed
from seeds import failures

SEEDS = 20


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_confirmed_outlives_faults_of_brokers_disks_clocks_links_and_the_store(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=20_000, chunk=50)
def test_what_was_confirmed_outlives_faults_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/cluster/cluster_run.py") == {}


def test_the_seeds_differ_in_brokers_replicas_and_storage() -> None:
    runs = [ClusterRun(seed) for seed in range(SEEDS)]
    assert {run.nodes for run in runs} == {3, 5}
    assert {(run.replicas, run.min_in_sync) for run in runs} == {(2, 1), (2, 2), (3, 1), (3, 2)}
    assert {run.is_synced for run in runs} == {True, False}
    assert {run.troubles for run in runs} == {1, 2}
