"""The controller's plan in the model of replication: searched as a whole, and with planted bugs, all found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import replication
from explore import FAULT, Exploration, explore
from replication import ALL, NOTHING, TAIL, Case, Faults, Replication, State, Store

from linn.core.cluster import plan as plan_module
from linn.core.cluster.entries import ClusterState, Loss, NodeEntry, PartEntry, SessionEntry

KEY = "parts/t/0"
LOSSES: dict[int, Loss] = {TAIL: "tail", ALL: "all"}
_NAMES = "unsynced", "disk", "lease", "move", "stop", "stops", "last", "pair", "both", "pair power"
LOST = "a member of the in-sync set misses what was committed"
CASES = {
    **{name: replication.CASES[name] for name in _NAMES},
    "two disks": Case(Faults(disks=2), nodes=2, minimum=1, is_synced=False, records=1),
    "both tails": Case(Faults(powers=2), nodes=2, minimum=1, is_synced=False, records=1),
}
MUTANTS = {
    "a member that has lost something stays": (
        "    if not kept:\n",
        "    kept = part.isr\n    if not kept:\n",
        "both",
        LOST,
    ),
    "a leader from outside the in-sync set": (
        "alive = [node for node in _in_order(part)",
        "alive = [node for node in sorted(state.sessions)",
        "both",
        LOST,
    ),
    "the last member stays though it has lost everything": (
        'for node in _in_order(part) if losses[node] == "tail")[:1]',
        "for node in _in_order(part))[:1]",
        "two disks",
        LOST,
    ),
    "the dead leave below the least number": (
        "len(part.isr) - max(1, policy.min_in_sync)",
        "len(part.isr) - 1",
        "both",
        "fewer losses than the least number",
    ),
    "the same leader keeps its epoch": (
        "epoch=part.epoch + 1",
        "epoch=part.epoch + (leader != part.leader)",
        "both",
        "there is no leader",
    ),
    "a leader of an earlier session stays": (
        " and session.session == part.session and",
        " and",
        "both",
        "there is no leader",
    ),
    "a leader that stops names one outside of the in-sync set": (
        "others = [other for other in candidates(state, part, policy) if other != node]",
        "others = [other for other in sorted(state.sessions) if other != node]",
        "last",
        LOST,
    ),
    "a node that stops leaves the set below the least number": (
        "len(part.isr) <= max(1, least)",
        "len(part.isr) <= 1",
        "stops",
        "fewer losses than the least number",
    ),
}
"""Planted bugs: the text and what it becomes, the case that finds it, and what it violates."""

SPARE = {
    "a leader outside of the in-sync set stays": (" and part.leader in part.isr:", ":", "both tails"),
    "the last member is elected before its loss is handled": (
        ' and told_loss(state, node, policy) == "none"]',
        "]",
        "both tails",
    ),
}
"""Rules that do no harm where they are missing, because a plan removes, elects and handles in one write."""


class Planned(Replication):
    """Replication whose controller does what the plan says, with any order of the replicas."""

    def __init__(self, case: Case, planner: Any = plan_module) -> None:
        super().__init__(case)
        self._planner = planner
        self._policy = plan_module.PartPolicy(min_in_sync=case.minimum, is_synced=case.is_synced)
        self._known: dict[Store, list[dict[str, Any]]] = {}

    def _control(self, state: State) -> Iterator[tuple[str, State]]:
        store = state.store
        if store not in self._known:
            self._known[store] = self._writes(store)
        for changes in self._known[store]:
            yield "the controller writes", self._written(state, changes)
        if not self._known[store] and state.faults.moves:
            moved = state._replace(faults=state.faults._replace(moves=state.faults.moves - 1))
            for label, after in self._elect(moved, "moves the leadership to"):
                yield FAULT + label, after

    def _writes(self, store: Store) -> list[dict[str, Any]]:
        """The first write of the plan, for every order of the replicas."""
        return self._asked(store, lambda state: self._planner.plan(state, 0, lambda _: self._policy))

    def _asked(self, store: Store, ask: Callable[[ClusterState], list[Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for replicas in permutations(range(1, self.case.nodes + 1)):
            state = ClusterState(1)
            for index, session in enumerate(store.sessions):
                state.nodes[index + 1] = NodeEntry("f", "h", "r")
                if session.number:
                    lost = LOSSES.get(session.lost, "none")
                    state.sessions[index + 1] = SessionEntry(str(session.number), 0, {}, (1, 1), lost)
            isr = tuple(sorted(index + 1 for index in store.isr))
            state.parts[KEY] = PartEntry(store.leader + 1, str(store.session), store.epoch, isr, replicas)
            changes = [write.changes for write in ask(state)][:1]
            found += [change for change in changes if change not in found]
        return found

    def _depart(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        def ask(known: ClusterState) -> list[Any]:
            found: list[Any] = self._planner.departure(known, number + 1, {KEY}, lambda _: self._policy)
            return found

        for changes in self._asked(state.store, ask):
            yield f"{number} departs", self._written(state, changes)

    def _written(self, state: State, changes: dict[str, Any]) -> State:
        part = changes.pop(KEY, None) if KEY in (changes := dict(changes)) else None
        if part is not None:
            isr = frozenset(node - 1 for node in part.isr)
            store = state.store._replace(epoch=part.epoch, leader=part.leader - 1, session=int(part.session), isr=isr)
            state = state._replace(store=store)
        for key in changes:
            state = self._handled(state, int(key.removeprefix("nodes/")) - 1)
        return state

    @staticmethod
    def _handled(state: State, number: int) -> State:
        """Take over that a loss is handled, as `Replication._forgive` does, but for what the plan has to do."""
        store, node = state.store, state.nodes[number]
        session = store.sessions[number]
        sessions = (*store.sessions[:number], session._replace(lost=NOTHING), *store.sessions[number + 1 :])
        state = state._replace(store=store._replace(sessions=sessions))
        if node.is_up and node.session == session.number:
            nodes = (*state.nodes[:number], node._replace(lost=NOTHING), *state.nodes[number + 1 :])
            state = state._replace(nodes=nodes)
        if number in store.isr and session.lost == TAIL:
            # The topic's policy takes the loss of all members into account: what is committed is what is left.
            pairs = takewhile(lambda pair: pair[0] == pair[1], zip(state.committed, node.log, strict=False))
            state = state._replace(committed=tuple(batch for batch, _ in pairs))
        return state


def assert_is_whole(explored: Exploration[State]) -> None:
    assert explored.violation is None, str(explored)
    assert explored.is_whole
    assert explored.states > 1_000
    assert explored.finals > 0


@pytest.mark.parametrize("name", CASES)
def test_the_plan_loses_nothing_that_is_committed(name: str) -> None:
    assert_is_whole(explore(Planned(CASES[name])))


def test_elections_before_losses_are_found() -> None:
    elections_first = ("now = with_leader(state, kept, policy)", "now = with_leader(state, part, policy)")
    explored = explore(
        Planned(CASES["both"], mutated(elections_first, (' and told_loss(state, node, policy) == "none"]', "]")))
    )
    assert LOST in str(explored.violation), str(explored)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_in_the_plan_is_found(mutant: str) -> None:
    old, new, case, says = MUTANTS[mutant]
    explored = explore(Planned(CASES[case], mutated((old, new))))
    assert explored.violation is not None, "no state violates anything"
    assert says in explored.violation, str(explored)


@pytest.mark.parametrize("variant", SPARE)
def test_a_rule_for_writes_in_several_parts_is_not_needed_in_one(variant: str) -> None:
    old, new, case = SPARE[variant]
    assert_is_whole(explore(Planned(CASES[case], mutated((old, new)))))


def mutated(*replaced: tuple[str, str]) -> Any:
    """The module of the plan with a bug planted in its text."""
    text = Path(plan_module.__file__).read_text(encoding="utf-8")
    for old, new in replaced:
        assert text.count(old) == 1, "the text of the plan has changed"
        text = text.replace(old, new)
    module: Any = ModuleType("mutated_plan")
    exec(compile(text, "mutated_plan", "exec"), vars(module))
    return module
