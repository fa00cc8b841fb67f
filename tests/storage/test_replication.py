"""Committed records of a replicated group are neither lost nor changed, whatever dies; in the end replicas agree."""

from __future__ import annotations

import pytest
from replication_run import replicate

from linn.testing.deterministic import run_simulation

SEEDS = 240
CHUNKS = 8


def run(seed: int) -> None:
    """Run a seed."""
    run_simulation(seed, lambda _: replicate(seed))


@pytest.mark.parametrize("chunk", [pytest.param(0, marks=pytest.mark.quick), *range(1, CHUNKS)])
def test_replicas_keep_what_is_committed_through_any_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS // CHUNKS, (chunk + 1) * SEEDS // CHUNKS):
        run(seed)


@pytest.mark.soak(seeds=20_000, chunk=200)
def test_replicas_keep_what_is_committed_through_many_more_faults(seeds: range) -> None:
    for seed in seeds:
        run(seed)
