"""Two-phase delivery, transactions and replication as designed, explored as a whole; and planted bugs, all found."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import cluster_transactions
import damaged_replicas
import pytest
import replication
import transactions
import two_phase
from cluster_transactions import ClusterTransactions
from damaged_replicas import DamagedReplicas
from explore import FAULT, Exploration, S, explore
from replication import Replication
from transactions import Transactions
from two_phase import TwoPhase

TWO_PHASE_STATES = {
    "crash": 40_000,
    "kill": 1_300,
    "zombie": 65_000,
    "doubt": 17_000,
    "operator": 2_400,
    "reject": 7_500,
    "floor": 5_100,
    "settled": 23_000,
    "overruled": 4_100,
    "twice": 7_400,
}
"""States that each case of two-phase delivery has at least."""
TWO_PHASE_MUTANTS = {
    "a decided record expires": ("doubt", "an effect is in two stores"),
    "a name moves to another store": ("twice", "an effect is in two stores"),
    "an operator's decision answers nobody": ("operator", "a local transaction stays open"),
    "COMMIT before the decision is durable": ("doubt", "an effect is in two stores"),
    "COMMIT is not repeated": ("kill", "a record is never settled"),
    "COMMIT is repeated before the decision is durable": ("twice", "an effect is in two stores"),
    "COMMIT to any name": ("crash", "an effect is in two stores"),
    "commit does not look at the marks": ("kill", "an effect is twice in one store"),
    "delivery ids repeat": ("doubt", "an effect is in two stores"),
    "DONE before the local commit": ("kill", "a record has no effect"),
    "DONE of another delivery": ("crash", "a record is never settled"),
    "effect and mark in two transactions": ("kill", "an effect is twice in one store"),
    "events name records without epoch": ("settled", "a record has no effect"),
    "floor from what is not durable": ("overruled", "a record has no effect"),
    "floor may go down": ("settled", "an effect is twice in one store"),
    "floor past the unsettled": ("floor", "a record has no effect"),
    "floor raised part by part": ("settled", "a record has no effect"),
    "floor without epoch": ("settled", "a record has no effect"),
    "mark without epoch": ("crash", "a record has no effect"),
    "recovery forgets what is decided": ("twice", "an effect is in two stores"),
    "resolve answers abort and leaves the lease": ("doubt", "a record is never settled"),
    "resolve answers what is not durable": ("doubt", "an effect is in two stores"),
    "stale READY is decided": ("reject", "an effect is in two stores"),
    "the same name does not fence": ("reject", "a local transaction stays open"),
}
"""Planted bugs, with the case that finds each, and what it violates."""
TRANSACTION_STATES = {
    "coordinator": 70_000,
    "partition": 8_500,
    "takeover": 50_000,
    "numbers": 27_000,
    "names": 9_700,
    "branches": 15_000,
    "two": 33_000,
}
TRANSACTION_MUTANTS = {
    "a batch is confirmed before it is durable": ("partition", "is not readable"),
    "a branch that is not named is committed": ("branches", "not committed is readable"),
    "a commit does not name its partitions": ("partition", "is not readable"),
    "a commit is acknowledged before it is durable": ("partition", "is not readable"),
    "a marker ends a later transaction": ("names", "not committed is readable"),
    "a restarted partition commits what is unknown": ("branches", "not committed is readable"),
    "a timeout aborts what is decided": ("names", "is not readable"),
    "aborted data is given to a queue": ("numbers", "delivered by a queue"),
    "aborted data is read": ("numbers", "not committed is readable"),
    "an epoch is handed out before it is durable": ("names", "not committed is readable"),
    "an old epoch is accepted": ("names", "a fenced producer commits"),
    "answers outlive a restart": ("partition", "is not readable"),
    "complete before the markers are durable": ("branches", "is not readable"),
    "markers before the decision is durable": ("names", "not committed is readable"),
    "markers are named without epoch": ("names", "not committed is readable"),
    "numbers are not checked": ("names", "not committed is readable"),
    "partitions ask after a restart only": ("names", "stays open in a partition"),
    "partitions do not ask": ("names", "stays open in a partition"),
    "parts are named without epoch": ("names", "not committed is readable"),
    "recovery forgets decisions": ("names", "is not readable"),
    "stable offset passes what is open": ("names", "not committed is readable"),
    "the next joins before this is complete": ("names", "is not readable"),
    "what is fenced is not aborted later": ("names", "stays open in a partition"),
}
TRANSACTION_SPARE = {
    "a part that has ended is opened again": "partition",
    "a timeout does not fence": "partition",
    "answers take time": "partition",
    "data is appended before it joins": "branches",
}
"""Variants that do no harm: rules that others cover (see the docstring of the model), and a delay."""
CLUSTER_STATES = {
    "restart": 3_000,
    "timeout": 4_500,
    "next": 17_000,
    "death": 4_000,
    "names": 8_000,
    "cut": 4_000,
    "branches": 9_000,
    "source": 11_000,
    "effects": 18_000,
}
UNCOVERED = "readable that no decision covers"
MISSES = "misses its part of a committed transaction"
CLUSTER_MUTANTS = {
    "a batch goes to the transaction that is open": ("names", UNCOVERED),
    "a batch is confirmed before it is committed": ("branches", MISSES),
    "a commit is acknowledged before it is committed": ("next", MISSES),
    "a commit is for every participant that asks": ("branches", UNCOVERED),
    "a coordinator aborts what it does not know yet": ("restart", MISSES),
    "a decision replaces one whose marks are missing": ("next", MISSES),
    "a former owner settles": ("effects", "its effect twice"),
    "a mark counts for a new owner before it is committed": ("source", "a position moves back"),
    "a mark ends a later transaction": ("restart", UNCOVERED),
    "a mark is applied again": ("effects", "a position moves back"),
    "a mark is sent before the decision is committed": ("restart", UNCOVERED),
    "a name is given before it is committed": ("names", "waits for ever"),
    "a new coordinator aborts what is open": ("restart", "does not survive"),
    "a new owner does not wait for what is open": ("effects", "its effect twice"),
    "a new owner goes on with the numbers": ("names", "a fenced producer commits"),
    "a part that has ended is opened again": ("restart", "written to after its end"),
    "a replaced coordinator refuses what it does not know yet": ("restart", "told that its transaction was aborted"),
    "a seat is given before it is committed": ("source", "its effect twice"),
    "aborted data is read": ("branches", UNCOVERED),
    "an abort is told before it is committed": ("branches", MISSES),
    "branches are announced before they are committed": ("branches", MISSES),
    "marks count before they are committed": ("next", MISSES),
    "participants ask after a move only": ("branches", "stays open in a participant"),
    "participants do not ask": ("branches", "stays open in a participant"),
    "the stable offset passes what is open": ("restart", UNCOVERED),
    "who is fenced is told of an abort": ("names", "told that its transaction was aborted"),
}
CLUSTER_SPARE = {
    "a participant does not ask first": "timeout",
    "a permission outlives its leader": "timeout",
    "what is unknown is not answered": "names",
}
"""Variants that do no harm: rules of the design that others cover."""
REPLICATION_STATES = {
    "kill": 150_000,
    "power": 25_000,
    "unsynced": 90_000,
    "disk": 14_000,
    "lease": 80_000,
    "link": 15_000,
    "move": 50_000,
    "stop": 34_000,
    "stops": 2_400,
    "last": 7_500,
    "pair": 45_000,
    "both": 8_000,
    "pair power": 20_000,
    "record": 13_000,
}
LOST = "a member of the in-sync set misses what was committed"
TOO_FEW = "fewer losses than the least number"
REPLICATION_MUTANTS = {
    "a leader counts what is not synced": ("power", LOST),
    "a leader from outside the in-sync set": ("both", LOST),
    "a leader names another in its own epoch": ("stops", "there is no leader"),
    "a leader names one outside of the set": ("last", LOST),
    "a loss is told once": ("both", LOST),
    "a node that stops leaves the set below the least number": ("stops", TOO_FEW),
    "a majority is enough": ("record", LOST),
    "a removal counts before it is done": ("record", LOST),
    "a restarted leader leads on": ("unsynced", LOST),
    "acknowledgements of an earlier epoch count": ("move", LOST),
    "added before it holds the watermark": ("both", LOST),
    "added before the end of the promotion": ("record", LOST),
    "added in any session": ("both", LOST),
    "an addition does not count before it is known": ("both", LOST),
    "an addition is compared with the last session": ("both", LOST),
    "an answer of a later epoch counts": ("move", LOST),
    "cut to the watermark": ("both", LOST),
    "elections before losses": ("both", LOST),
    "no cut": ("pair", LOST),
    "no loss is told": ("both", LOST),
    "the dead leave below the least number": ("both", TOO_FEW),
    "the in-sync set shrinks below the least number": ("both", TOO_FEW),
    "the same leader keeps its epoch": ("both", "there is no leader"),
    "what is not synced is acknowledged": ("pair power", LOST),
}
DAMAGE_STATES = {"damage": 6_500, "damage and kill": 21_000, "damages": 850}
DAMAGE_MUTANTS = {
    "a marked node is added": ("damages", LOST),
    "a member drops what it has": ("damages", LOST),
    "an addition is not compared with the entry": ("damages", LOST),
}


def assert_is_whole(explored: Exploration[S], states_min: int) -> None:
    """Nothing is violated, nothing was cut off, and the model can still do what it could."""
    assert explored.violation is None, str(explored)
    assert explored.is_whole
    assert explored.states >= states_min
    assert explored.finals > 0


def assert_is_found(explored: Exploration[S], says: str) -> None:
    assert explored.violation is not None, "no state violates anything"
    assert says in explored.violation, str(explored)
    assert explored.trace


@pytest.mark.parametrize("name", two_phase.CASES)
def test_two_phase_delivery_has_each_effect_once(name: str) -> None:
    assert_is_whole(explore(TwoPhase(two_phase.CASES[name])), TWO_PHASE_STATES[name])


@pytest.mark.parametrize("mutant", TWO_PHASE_MUTANTS)
def test_a_bug_in_two_phase_delivery_is_found(mutant: str) -> None:
    case, says = TWO_PHASE_MUTANTS[mutant]
    assert_is_found(explore(TwoPhase(two_phase.CASES[case], frozenset([mutant]))), says)


@pytest.mark.parametrize("name", transactions.CASES)
def test_transactions_are_all_or_nothing(name: str) -> None:
    assert_is_whole(explore(Transactions(transactions.CASES[name])), TRANSACTION_STATES[name])


@pytest.mark.parametrize("mutant", TRANSACTION_MUTANTS)
def test_a_bug_in_transactions_is_found(mutant: str) -> None:
    case, says = TRANSACTION_MUTANTS[mutant]
    assert_is_found(explore(Transactions(transactions.CASES[case], frozenset([mutant]))), says)


@pytest.mark.parametrize("mutant", TRANSACTION_SPARE)
def test_a_harmless_variant_of_transactions_violates_nothing(mutant: str) -> None:
    explored = explore(Transactions(transactions.CASES[TRANSACTION_SPARE[mutant]], frozenset([mutant])))
    assert_is_whole(explored, 1)


@pytest.mark.parametrize("name", cluster_transactions.CASES)
def test_transactions_over_brokers_are_all_or_nothing(name: str) -> None:
    assert_is_whole(explore(ClusterTransactions(cluster_transactions.CASES[name])), CLUSTER_STATES[name])


@pytest.mark.parametrize("mutant", CLUSTER_MUTANTS)
def test_a_bug_in_transactions_over_brokers_is_found(mutant: str) -> None:
    case, says = CLUSTER_MUTANTS[mutant]
    assert_is_found(explore(ClusterTransactions(cluster_transactions.CASES[case], frozenset([mutant]))), says)


@pytest.mark.parametrize("mutant", CLUSTER_SPARE)
def test_a_harmless_variant_of_transactions_over_brokers_violates_nothing(mutant: str) -> None:
    case = cluster_transactions.CASES[CLUSTER_SPARE[mutant]]
    assert_is_whole(explore(ClusterTransactions(case, frozenset([mutant]))), 1)


@pytest.mark.parametrize("name", replication.CASES)
def test_replication_loses_nothing_that_is_committed(name: str) -> None:
    assert_is_whole(explore(Replication(replication.CASES[name])), REPLICATION_STATES[name])


@pytest.mark.parametrize("mutant", REPLICATION_MUTANTS)
def test_a_bug_in_replication_is_found(mutant: str) -> None:
    case, says = REPLICATION_MUTANTS[mutant]
    assert_is_found(explore(Replication(replication.CASES[case], frozenset([mutant]))), says)


@pytest.mark.parametrize("name", damaged_replicas.CASES)
def test_damaged_replicas_lose_nothing_that_is_committed(name: str) -> None:
    assert_is_whole(explore(DamagedReplicas(damaged_replicas.CASES[name])), DAMAGE_STATES[name])


@pytest.mark.parametrize("mutant", DAMAGE_MUTANTS)
def test_a_bug_with_damaged_replicas_is_found(mutant: str) -> None:
    case, says = DAMAGE_MUTANTS[mutant]
    assert_is_found(explore(DamagedReplicas(damaged_replicas.CASES[case], frozenset([mutant]))), says)


@pytest.mark.parametrize(
    ("module", "listed"),
    [
        (cluster_transactions, {*CLUSTER_MUTANTS, *CLUSTER_SPARE}),
        (damaged_replicas, {*DAMAGE_MUTANTS}),
        (replication, {*REPLICATION_MUTANTS}),
        (two_phase, {*TWO_PHASE_MUTANTS}),
        (transactions, {*TRANSACTION_MUTANTS, *TRANSACTION_SPARE}),
    ],
)
def test_every_planted_bug_is_listed_here(module: ModuleType, listed: set[str]) -> None:
    text = Path(module.__file__ or "").read_text(encoding="utf-8")
    assert {*re.findall(r'"([^"]+)" (?:not )?in (?:self\.)?mutants', text)} <= listed


# --- the explorer ----------------------------------------------------------------------------------------------------


class Counter:
    """Counts up to a limit by one or two; a fault may set it back."""

    def __init__(self, limit: int, worst: int = -1, last: int = 0) -> None:
        self.limit = limit
        self.worst = worst
        self.last = last

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> list[tuple[str, int]]:
        up = [(f"+{step}", state + step) for step in (1, 2) if state + step <= self.limit]
        return [*up, (f"{FAULT}reset", 0)]

    def broken(self, state: int) -> str | None:
        return "it is the worst number" if state == self.worst else None

    def unkept(self, state: int) -> str | None:
        return None if state >= self.last else "it ends too early"


def test_every_state_is_seen_and_only_faults_may_be_left_in_a_final_one() -> None:
    assert explore(Counter(10)) == Exploration(11, 1, True, None)


def test_the_trace_to_a_violation_is_a_shortest_one() -> None:
    explored = explore(Counter(10, worst=4))
    assert (explored.violation, explored.trace, explored.state) == ("it is the worst number", ("+2", "+2"), 4)
    assert str(explored).splitlines()[1:] == ["   1 +2", "   2 +2", "     4"]


def test_a_promise_that_a_final_state_does_not_keep_is_a_violation() -> None:
    assert explore(Counter(10, last=11)).violation == "it ends too early"


def test_a_space_that_is_cut_off_is_not_whole() -> None:
    assert not explore(Counter(1_000), states_max=10).is_whole
