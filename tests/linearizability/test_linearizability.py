"""Transactions are linearizable: porcupine finds an order of what clients did that explains all that they were told.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/linearizability

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed. The checker is a program in Go,
which is built here; its module is downloaded once.
"""

from __future__ import annotations

from functools import cache

import pytest
from history import Checker, History, unexplained
from linearizable_run import PARTITIONS, history_of

from linn.core.log.partition import Partition

FIXED_SEEDS = range(20)
Step = tuple[str, int | list[int]]
"""An operation and its tag, or what a read has found; "commit?": of one whose client was not told."""


@cache
def fixed_history(seed: int) -> History:
    """The history of a fixed seed."""
    return history_of(seed)


# --- a broker --------------------------------------------------------------------------------------------------------


def test_transactions_are_linearizable(checker: Checker) -> None:
    assert unexplained(checker, FIXED_SEEDS, fixed_history) == {}


@pytest.mark.soak(seeds=10_000, chunk=250)
def test_transactions_are_linearizable_in_many_more_runs(checker: Checker, seeds: range) -> None:
    assert unexplained(checker, seeds, history_of) == {}


def test_the_histories_have_what_makes_them_hard() -> None:
    histories = [fixed_history(seed) for seed in FIXED_SEEDS]
    operations = [each for history in histories for each in history.operations]
    assert {each.partition for each in operations} == {*PARTITIONS}
    for kind in ("begin", "commit", "abort", "append"):
        assert any(each.kind == kind and each.is_sure for each in operations)
    for kind in ("begin", "commit", "abort"):
        assert any(each.kind == kind and not each.is_sure for each in operations)
    reads = [each for each in operations if each.kind == "read"]
    assert len({tuple(each.read) for each in reads}) > len(reads) / 5


def test_readers_that_pass_open_transactions_are_found(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "stable_offset", Partition.high_watermark)
    assert "Illegal" in checker.results(history_of(0).lines("0")).values()


# --- the checker -----------------------------------------------------------------------------------------------------


def one_by_one(*steps: Step) -> list[str]:
    """A history in which each client waits for the one before, and is told, but where a "?" says otherwise."""
    history = History()
    for client, (kind, about) in enumerate(steps):
        tag = about if isinstance(about, int) else 0
        operation = history.call("p", client, kind.removesuffix("?"), tag)
        if isinstance(about, list):
            operation.read = about
        if not kind.endswith("?"):
            operation.end()
    return history.lines("by hand")


WRONG: dict[str, list[Step]] = {
    "a read misses what was committed": [("begin", 1), ("commit", 1), ("read", [])],
    "a read misses what an earlier one has seen": [("begin", 1), ("commit?", 1), ("read", [1]), ("read", [])],
    "a read shows what was aborted": [("begin", 1), ("abort", 1), ("read", [1])],
    "a read shows what may be aborted, and is later gone": [("begin", 1), ("abort?", 1), ("read", [1])],
    "a read shows what is open": [("begin", 1), ("read", [1]), ("commit", 1)],
    "a read does not wait for what is open": [("begin", 1), ("begin", 2), ("commit", 2), ("read", [2]), ("commit", 1)],
    "a read waits for what has ended": [("begin", 1), ("begin", 2), ("commit", 2), ("abort", 1), ("read", [])],
    "a read turns the order": [("begin", 1), ("begin", 2), ("commit", 1), ("commit", 2), ("read", [2, 1])],
    "what was aborted is committed": [("begin", 1), ("abort", 1), ("commit", 1)],
    "what was committed is aborted": [("begin", 1), ("commit", 1), ("abort", 1)],
    "a record that was confirmed is lost": [("append", 1), ("read", [])],
    "a record is not behind one that was confirmed before": [("append", 1), ("append", 2), ("read", [2, 1])],
}
RIGHT: dict[str, list[Step]] = {
    "nothing has happened": [("read", [])],
    "a read waits for what is open": [("begin", 1), ("begin", 2), ("commit", 2), ("read", []), ("commit", 1)],
    "it sees both in the end": [("begin", 1), ("begin", 2), ("commit", 2), ("commit", 1), ("read", [1, 2])],
    "a commit comes late": [("begin", 1), ("commit?", 1), ("abort?", 1), ("read", []), ("read", [1])],
    "or never": [("begin", 1), ("commit?", 1), ("append", 2), ("abort?", 1), ("read", []), ("read", [2])],
    "a publish comes late": [("begin?", 1), ("abort?", 1), ("append", 2), ("read", [2]), ("append", 3), ("read", [2])],
}


@pytest.mark.parametrize("steps", WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_refused(checker: Checker, steps: list[Step]) -> None:
    assert checker.results(one_by_one(*steps)) == {"by hand/p": "Illegal"}


@pytest.mark.parametrize("steps", RIGHT.values(), ids=RIGHT)
def test_a_right_history_is_accepted(checker: Checker, steps: list[Step]) -> None:
    assert checker.results(one_by_one(*steps)) == {"by hand/p": "Ok"}


def test_what_overlaps_has_either_order(checker: Checker) -> None:
    history = History()
    history.call("p", 0, "begin", 1).end()
    commit, read, later = history.call("p", 0, "commit", 1), history.call("p", 1, "read"), history.call("p", 2, "read")
    later.read = [1]
    for each in (commit, read, later):
        each.end()
    assert checker.results(history.lines("by hand")) == {"by hand/p": "Ok"}


def test_one_partition_does_not_excuse_another(checker: Checker) -> None:
    history = History()
    for partition, seen in (("p", [1]), ("q", [])):
        for kind in ("begin", "commit", "read"):
            operation = history.call(partition, 0, kind, 1)
            operation.read = seen if kind == "read" else []
            operation.end()
    assert checker.results(history.lines("by hand")) == {"by hand/p": "Ok", "by hand/q": "Illegal"}
