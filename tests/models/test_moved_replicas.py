"""Reassignments as designed, explored as a whole; and planted bugs, all found."""

from __future__ import annotations

import moved_replicas
import pytest
from explore import explore
from moved_replicas import MovedReplicas

STATES = {"move": 46_000, "there and back": 5_600, "move and kill": 22_000, "cancel": 33_000}
LOST = "a member of the in-sync set misses what was committed"
FORMER = "a node that is no replica is in sync"
MUTANTS = {
    "a dropped replica follows on": ("there and back", FORMER),
    "a leader names a target that is not in sync": ("move", LOST),
    "dropped below the least number": ("cancel and kill", "fewer in sync than the least number"),
    "dropped in the same epoch": ("there and back", FORMER),
    "targets count as in sync": ("move", LOST),
}


@pytest.mark.parametrize("name", moved_replicas.CASES)
def test_a_reassignment_loses_nothing_that_is_committed(name: str) -> None:
    explored = explore(MovedReplicas(moved_replicas.CASES[name]))
    assert explored.violation is None, str(explored)
    assert explored.is_whole
    assert explored.states >= STATES[name]
    assert explored.finals > 0


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_in_reassignments_is_found(mutant: str) -> None:
    case, says = MUTANTS[mutant]
    cases = moved_replicas.CASES | moved_replicas.TOO_LARGE
    explored = explore(MovedReplicas(cases[case], frozenset([mutant])))
    assert explored.violation is not None, "no state violates anything"
    assert says in explored.violation, str(explored)
