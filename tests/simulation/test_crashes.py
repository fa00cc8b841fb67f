"""A whole broker under seeds: whatever dies, breaks or fills up, what it promised holds.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/simulation/test_crashes.py

runs the seeds from 1000 up to 1999. What fails names its seed and how to replay it.
"""

from __future__ import annotations

import os

import pytest
from simulated_run import run_seed

SEEDS = 300
SOAK_SEEDS = 50_000
CHUNK = 250


def soak_range() -> range:
    """The seeds of a soak, from the environment or all."""
    first, _, end = os.environ.get("SIM_SEEDS", f"{SEEDS}-{SEEDS + SOAK_SEEDS}").partition("-")
    return range(int(first), int(end))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_promises_hold_whatever_happens(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", soak_range()[::CHUNK])
def test_promises_hold_in_many_more_runs(first: int) -> None:
    failed: dict[int, str] = {}
    for seed in range(first, min(first + CHUNK, soak_range().stop)):
        try:
            run_seed(seed)
        except Exception as error:
            failed[seed] = f"{str(error).splitlines()[0][:300]} ({'; '.join(error.__notes__)})"
    assert failed == {}
