"""Histories of three brokers under faults: porcupine finds an order that explains what clients were told.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/linearizability

runs the seeds from 1000 up to 1999.
"""

from __future__ import annotations

from functools import cache

import pytest
from cluster_histories import TOPICS, history_of
from history import Checker, History, unexplained

from linn.core.topics.topic import Topic

FIXED_SEEDS = range(8)


@cache
def fixed_history(seed: int) -> History:
    """The history of a fixed seed."""
    return history_of(seed)


def test_partitions_of_a_cluster_are_logs_and_queues(checker: Checker) -> None:
    assert unexplained(checker, FIXED_SEEDS, fixed_history) == {}


@pytest.mark.soak(seeds=10_000, chunk=100)
def test_partitions_of_a_cluster_are_logs_and_queues_in_many_more_runs(checker: Checker, seeds: range) -> None:
    assert unexplained(checker, seeds, history_of) == {}


def test_the_histories_of_a_cluster_have_what_makes_them_hard() -> None:
    operations = [each for seed in FIXED_SEEDS for each in fixed_history(seed).operations]
    assert {each.partition for each in operations} == {*TOPICS}
    for kind in ("append", "take", "ack", "read"):
        assert sum(each.kind == kind and each.is_sure for each in operations) > 20 * len(FIXED_SEEDS)
    assert any(each.kind == "ack" and not each.is_sure for each in operations)
    taken = [(seed, each.tag) for seed in FIXED_SEEDS for each in fixed_history(seed).operations if each.kind == "take"]
    assert len(taken) > len({*taken}), "no record was taken again"


def test_a_queue_whose_acks_the_next_leader_does_not_have_is_found(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Topic, "keeps_state", False)
    assert checker.results(history_of(0).lines("0")) == {"0/log": "Ok", "0/queue": "Illegal"}
