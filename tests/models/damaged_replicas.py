"""Model of replicas whose log is damaged: they leave the in-sync set, and are copied anew.

Rules that are needed beside those of `replication.py`, which they extend:

10. A replica that finds its log damaged leaves the set before it drops what it has, after naming another member as the
    leader if it leads; and it is marked in the same write.
11. No leader adds a node that is marked: what it has acknowledged it will drop. It ends the mark itself, when a leader
    has matched its empty log. An addition that was asked for before is refused, since the entry is another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from explore import FAULT
from replication import FOLLOWS, Case, Faults, Replication, State, _idle, _with_node, _without

REFUSED = -1
"""A session that no node has."""
CASES = {
    "damage": Case(Faults(damages=1), is_synced=False, records=1),
    "damage and kill": Case(Faults(damages=1, kills=1), nodes=2, minimum=1, is_synced=False),
    "damages": Case(Faults(damages=2), nodes=2, minimum=2, is_synced=False, records=1),
}


class DamagedReplicas(Replication):
    """Replication with damaged logs, or what becomes of it with planted bugs."""

    def _fail(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        yield from super()._fail(state, number)
        store, node = state.store, state.nodes[number]
        if state.faults.damages and number in store.isr:
            after = state._replace(faults=state.faults._replace(damages=state.faults.damages - 1))
            after = _with_node(after, number, _idle(node)._replace(epoch=node.epoch))
            if "a member drops what it has" in self.mutants:
                yield f"{FAULT}{number} drops its log", _with_node(after, number, _idle(node)._replace(log=()))
                return
            for label, left in self._leave(after, number):
                yield f"{FAULT}{number} is damaged, and {label}", left
        if number in store.unfit and node.role == FOLLOWS and node.epoch == store.epoch:
            fit = state._replace(store=store._replace(unfit=store.unfit - {number}))
            yield f"{number} is fit again", self._without_asked(fit, number)

    def _without_asked(self, state: State, number: int) -> State:
        """Additions that were asked for before the entry changed are compared with its revision, and refused."""
        if "an addition is not compared with the entry" in self.mutants:
            return state
        for at, node in enumerate(state.nodes):
            pending = frozenset((other, REFUSED if other == number else session) for other, session in node.pending)
            state = _with_node(state, at, node._replace(pending=pending))
        return state

    def _leave(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        store = state.store
        left = store._replace(isr=store.isr - {number}, unfit=store.unfit | {number})
        if store.leader != number:
            if left.isr:
                yield "leaves", state._replace(store=left)
            return
        for other in left.isr:
            session = store.sessions[other]
            if session.number and not session.lost:
                named = left._replace(epoch=store.epoch + 1, leader=other, session=session.number)
                yield f"names {other}", state._replace(store=named)

    def _expand(self, state: State, number: int, other: int, is_current: bool) -> Iterator[tuple[str, State]]:
        for label, after in super()._expand(state, number, other, is_current):
            is_barred = other in state.store.unfit and "a marked node is added" not in self.mutants
            if after.store.isr != state.store.isr and is_barred:
                node = state.nodes[number]
                refused = node._replace(pending=_without(node.pending, {other}))
                yield f"{number} hears that {other} is barred", self._marked(_with_node(state, number, refused), number)
            else:
                yield label, after

    def _match(self, state: State, number: int, leader: int) -> State:
        if (number in state.store.unfit and number not in state.store.isr) or (
            number in state.store.unfit and "a marked node is added" in self.mutants
        ):
            node = state.nodes[number]
            state = _with_node(state, number, node._replace(log=(), synced=0, mark=0))
        return super()._match(state, number, leader)
