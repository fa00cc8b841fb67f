"""Unclean elections as designed, explored as a whole where that is feasible; and planted bugs, all found."""

from __future__ import annotations

import pytest
import unclean_elections
from explore import explore
from unclean_elections import UncleanElections

STATES = {"behind a cut": 8_100, "killed": 5_400, "lost": 7_300}
TOO_LARGE = ("twice", "three")
SOME_STATES = 30_000
LOST = "a member of the in-sync set misses what was committed"
MUTANTS = {
    "elected in the same epoch": ("behind a cut", LOST),
    "nodes given up stay in sync": ("twice", LOST),
}


@pytest.mark.parametrize("name", STATES)
def test_an_unclean_election_loses_nothing_but_what_is_given_up(name: str) -> None:
    explored = explore(UncleanElections(unclean_elections.CASES[name]))
    assert explored.violation is None, str(explored)
    assert explored.is_whole
    assert explored.states >= STATES[name]
    assert explored.finals > 0


@pytest.mark.parametrize("name", TOO_LARGE)
def test_no_early_state_of_a_larger_case_loses_more(name: str) -> None:
    assert explore(UncleanElections(unclean_elections.CASES[name]), SOME_STATES).violation is None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_in_unclean_elections_is_found(mutant: str) -> None:
    case, says = MUTANTS[mutant]
    explored = explore(UncleanElections(unclean_elections.CASES[case], frozenset([mutant])))
    assert explored.violation is not None, "no state violates anything"
    assert says in explored.violation, str(explored)
