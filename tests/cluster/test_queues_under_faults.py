"""Random runs of queues with everything in a cluster: `queues_run` says what is run, and what has to hold.

SIM_SEEDS=1000-1100 python -m pytest -m soak tests/cluster/test_queues_under_faults.py
"""

from __future__ import annotations

from collections import Counter

import pytest
from queues_run import QueuesRun, run_seed
from seeds import failures

SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_record_of_a_queue_comes_to_one_end_whatever_fails(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=5_000, chunk=20)
def test_each_record_comes_to_one_end_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/cluster/queues_run.py") == {}


def test_the_seeds_differ_in_settings() -> None:
    found = Counter[str]()
    for run in map(QueuesRun, range(SEEDS)):
        for account in run.accounts.values():
            found.update({f"{name} {value}" for name, value in account.settings.items()})
    wanted = {
        *(f"order {order}" for order in ("fifo", "priority", "fair", "key")),
        *(f"overflow {overflow}" for overflow in ("block", "reject", "drop-head", "dead-letter")),
        *("delivery exactly-once", "consumers one", "ttl 15s", "dedup 1d", "status 7d", "keep 7d"),
        *("dead_letter graves", "dead_letter_exchange funerals", "redelivery_delay 1s", "max_deliveries 2"),
    }
    assert wanted <= {*found}
