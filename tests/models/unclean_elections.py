"""Model of unclean elections: an operator lets a replica lead that may lack what was committed, and gives others up.

Rules that are needed beside those of `replication.py`, which they extend:

16. It is refused while a member of the in-sync set can lead, and until the controller has heard what the new leader has
    lost.
17. The new leader is alone in the in-sync set, in a new epoch. The nodes given up are added as all others are: what
    they have beyond the new leader's log they cut when they follow it.

The nodes given up may live, and the old leader lead on until it hears of the election. What it confirms meanwhile is
given up as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from explore import FAULT
from replication import Case, Faults, Replication, State, _common

CASES = {
    "behind a cut": Case(Faults(links=1, leases=1, unclean=1), nodes=2, minimum=1, is_synced=False),
    "killed": Case(Faults(links=1, kills=1, unclean=1), nodes=2, minimum=1, is_synced=False),
    "lost": Case(Faults(links=1, disks=1, unclean=1), nodes=2, minimum=1, is_synced=False),
    "twice": Case(Faults(leases=2, links=1, unclean=2), nodes=2, minimum=1, is_synced=False),
    "three": Case(Faults(leases=2, links=1, unclean=1), is_synced=False, records=1),
}


class UncleanElections(Replication):
    """Replication with unclean elections, or what becomes of it with planted bugs."""

    def _control(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super()._control(state)
        if not state.faults.unclean:
            return
        store = state.store
        fit = {number for number, session in enumerate(store.sessions) if session.number and not session.lost}
        if store.isr & fit:
            return
        left = state.faults._replace(unclean=state.faults.unclean - 1)
        for leader in fit:
            session = store.sessions[leader]
            epoch = store.epoch + ("elected in the same epoch" not in self.mutants)
            isr = frozenset({leader}) | (store.isr if "nodes given up stay in sync" in self.mutants else frozenset())
            led = store._replace(epoch=epoch, leader=leader, session=session.number, isr=isr, unclean=epoch)
            kept = _common(state.committed, state.nodes[leader].log)
            yield f"{FAULT}an operator lets {leader} lead", state._replace(store=led, faults=left, committed=kept)

    def _marked(self, state: State, number: int) -> State:
        """Move a watermark; whatever a leader of before the election confirms is given up."""
        after = super()._marked(state, number)
        if state.nodes[number].epoch < state.store.unclean:
            return after._replace(committed=state.committed, changed=state.changed)
        return after
