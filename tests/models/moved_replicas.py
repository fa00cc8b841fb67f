"""Model of a reassignment: other nodes are to hold the log, and the former ones delete it.

Rules that are needed beside those of `replication.py`, which they extend:

12. During a reassignment the replicas are the former ones and the targets. It ends when all targets are in sync, and
    alive, and one of them leads; the in-sync set is then what it was, without the others. If it is cancelled, which
    makes the former replicas the targets, it is enough that the least number of them are in sync and alive.
13. That write begins a new epoch, also if the leader stays. A dropped replica deletes its log some time later. If it is
    a replica again before, what it acknowledged in the former epoch must not count.
14. A node that knows that it is no replica follows nobody until it is one again: what it acknowledges it may delete.
15. A leader that is no target names one as the next leader, when all are in sync.

That no other node is added to the in-sync set follows from these rules, and needs none of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from explore import FAULT
from replication import Case, Faults, Replication, State, _with_node

FIRST = frozenset({0, 1})
"""The replicas in the beginning, of two or three nodes. They hold a record, which is committed."""
RECORD = (1, 1)
HAS_LOG, DELETED = 1, 2
CASES = {
    "move": Case(Faults(reassignments=1), minimum=1, is_synced=False, records=1),
    "there and back": Case(Faults(reassignments=3), nodes=2, minimum=1, is_synced=False, records=0),
    "move and kill": Case(Faults(reassignments=2, kills=1), nodes=2, minimum=1, is_synced=False, records=0),
    "cancel": Case(Faults(reassignments=2), minimum=2, is_synced=False, records=0),
}
TOO_LARGE = {"cancel and kill": Case(Faults(reassignments=2, kills=1), minimum=2, is_synced=False, records=0)}
"""Searched for planted bugs alone: of all its states 300,000 were, and none violated anything."""


class MovedReplicas(Replication):
    """Replication with reassignments, or what becomes of it with planted bugs."""

    def initial(self) -> State:
        state = super().initial()
        first, second, *others = state.nodes
        held = {"log": (RECORD,), "synced": 1, "mark": 1}
        holders = [first._replace(isr=FIRST, **held), second._replace(**held)]
        nodes = (*holders, *(node._replace(outside=DELETED) for node in others))
        store = state.store._replace(isr=FIRST, replicas=FIRST)
        return state._replace(nodes=nodes, store=store, committed=(RECORD,))

    def broken(self, state: State) -> str | None:
        store = state.store
        if not store.isr <= store.replicas:
            return "a node that is no replica is in sync"
        if len(store.isr) < self.case.minimum:
            return "a reassignment leaves fewer in sync than the least number"
        return super().broken(state)

    def unkept(self, state: State) -> str | None:
        store = state.store
        leader = state.nodes[store.leader]
        if leader.role != "leads" or leader.epoch != store.epoch:
            return "there is no leader"
        if store.target:
            return "a reassignment does not end"
        if store.isr != store.replicas:
            return "a replica stays out of the in-sync set"
        for number, node in enumerate(state.nodes):
            if node.log != (leader.log if number in store.replicas else ()):
                return "a node stays behind, or keeps what it should delete"
        return None

    # --- the controller and the operator ---

    def _control(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super()._control(state)
        store = state.store
        if state.faults.reassignments:
            left = state.faults._replace(reassignments=state.faults.reassignments - 1)
            for target in [store.former] if store.target else self._targets(store.replicas):
                moving = store._replace(replicas=store.replicas | target, target=target)
                moving = moving._replace(former=store.former or store.replicas)
                verb = "cancels" if store.target else "moves the log to"
                yield f"{FAULT}an operator {verb} {sorted(target)}", state._replace(store=moving, faults=left)
        if store.target:
            yield from self._carry_on(state)

    def _targets(self, replicas: frozenset[int]) -> list[frozenset[int]]:
        """Other replicas: as many of three nodes, or one or both of two."""
        nodes = range(self.case.nodes)
        sizes = (1, 2) if self.case.nodes == 2 else (len(replicas),)
        found = [frozenset(chosen) for size in sizes for chosen in combinations(nodes, size)]
        return [target for target in found if target != replicas]

    def _is_caught_up(self, state: State) -> bool:
        store = state.store
        alive = {number for number in store.isr & store.target if self._may_lead(state, number)}
        needed = frozenset() if store.target == store.former else store.target
        if "targets count as in sync" in self.mutants:
            return True
        least = 1 if "dropped below the least number" in self.mutants else self.case.minimum
        return needed <= alive and len(alive) >= least

    @staticmethod
    def _may_lead(state: State, number: int) -> bool:
        session = state.store.sessions[number]
        return session.number != 0 and not session.lost

    def _carry_on(self, state: State) -> Iterator[tuple[str, State]]:
        store = state.store
        is_any = "a leader names a target that is not in sync" in self.mutants
        if not (self._is_caught_up(state) or is_any) or store.sessions[store.leader].number != store.session:
            return
        if store.leader in store.target:
            isr = store.target if "targets count as in sync" in self.mutants else store.isr & store.target
            epoch = store.epoch + ("dropped in the same epoch" not in self.mutants)
            done = store._replace(replicas=store.target, isr=isr, epoch=epoch, target=frozenset(), former=frozenset())
            yield f"the controller drops {sorted(store.replicas - store.target)}", state._replace(store=done)
            return
        for other in store.target if is_any else store.target & store.isr:
            if other != store.leader and self._may_lead(state, other):
                isr = store.isr | {other}
                named = store._replace(
                    epoch=store.epoch + 1, leader=other, session=store.sessions[other].number, isr=isr
                )
                yield f"{store.leader} names {other}, a target", state._replace(store=named)

    # --- nodes ---

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super()._steps(state)
        for number, node in enumerate(state.nodes):
            if not node.is_up or not node.outside or node.epoch == 0:
                continue
            if number in state.store.replicas:
                yield f"{number} is a replica again", _with_node(state, number, node._replace(outside=0))
            elif node.outside == HAS_LOG:
                deleted = node._replace(log=(), synced=0, mark=0, outside=DELETED)
                yield f"{number} deletes its log", _with_node(state, number, deleted)

    def _look(self, state: State, number: int) -> State:
        after = super()._look(state, number)
        node = after.nodes[number]
        outside = (HAS_LOG if node.log else DELETED) if number not in state.store.replicas else 0
        return _with_node(after, number, node._replace(outside=outside))

    def _follow(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        if not state.nodes[number].outside or "a dropped replica follows on" in self.mutants:
            yield from super()._follow(state, number)
