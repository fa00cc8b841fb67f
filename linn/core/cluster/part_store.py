"""Writes of a leader to its topic's entry in the metadata store: the in-sync set, and a new epoch.

Law: each write depends on the revision of the entry from which it follows, and on the sessions that it names.
"""

from __future__ import annotations

import msgspec

from linn.core.cluster.entries import NODES, SESSIONS, ClusterState, PartEntry
from linn.core.cluster.moves import named
from linn.core.cluster.plan import PartPolicy, Write, part_write, retreat, with_members
from linn.core.cluster.shared_writes import SharedWrites
from linn.core.errors.metadata import RevisionConflict
from linn.core.log.replication.events import ChangeIsr, PartView
from linn.core.metadata.store import MetadataStore


def view_of(state: ClusterState, key: str) -> PartView | None:
    """The entry of a topic as the rules of replication see it; None: it is not placed yet."""
    part = state.parts.get(key)
    return part_view(part, state.revision_of(key)) if part is not None else None


def part_view(part: PartEntry, revision: int) -> PartView:
    """An entry as the rules of replication see it."""
    isr, replicas, unfit = frozenset(part.isr), frozenset(part.replicas), frozenset(part.unfit)
    return PartView(revision, part.epoch, part.leader, part.session, isr, replicas, unfit)


class PartStore:
    """The entries of the topics that one node leads."""

    def __init__(self, node: int, store: MetadataStore) -> None:
        self._node = node
        self._store = store
        self._writes = SharedWrites(store)

    async def change_isr(self, state: ClusterState, key: str, change: ChangeIsr) -> int:
        """Write another in-sync set; returns the revision of the entry.

        `state`: as this node knows it. Raises RevisionConflict: the entry or a session is another one. MetadataError.
        """
        part = state.parts.get(key)
        if part is None or state.revision_of(key) != change.revision:
            raise RevisionConflict(f"the entry {key} has changed")
        conditions = {key: change.revision}
        for node, session in change.added.items():
            found, entry = state.sessions.get(node), state.nodes.get(node)
            if found is None or found.session != session or entry is None:
                raise RevisionConflict(f"node {node} has another session")
            if found.lost != "none" and entry.handled != session:
                raise RevisionConflict(f"the loss of node {node} is not handled")
            conditions |= {name: state.revision_of(name) for name in (f"{SESSIONS}{node}", f"{NODES}{node}")}
        isr = tuple(node for node in part.replicas if node in change.isr)
        isr += tuple(sorted(change.isr - set(isr)))
        return await self._writes.put(Write({key: with_members(part, isr)}, conditions))

    async def begin_epoch(self, state: ClusterState, key: str) -> int:
        """Lead in the next epoch, after this node's own last one; returns the revision.

        Raises RevisionConflict: another may lead by now. MetadataError.
        """
        part, own = state.parts.get(key), state.sessions.get(self._node)
        if part is None or own is None or part.leader != self._node or part.session != own.session:
            raise RevisionConflict(f"node {self._node} does not lead any more")
        conditions = {name: state.revision_of(name) for name in (key, f"{SESSIONS}{self._node}")}
        return await self._writes.put(Write({key: msgspec.structs.replace(part, epoch=part.epoch + 1)}, conditions))

    async def retreat(self, state: ClusterState, key: str, policy: PartPolicy, *, is_damaged: bool) -> int | None:
        """Let another member lead, because this node can't go on; see `plan.retreat`. None: no other member can.

        Returns the revision. Raises RevisionConflict, MetadataError.
        """
        revision = None
        for write in retreat(state, self._node, key, policy, is_damaged=is_damaged):
            revision = await self._writes.put(write)
        return revision

    async def hand_over(self, state: ClusterState, key: str, policy: PartPolicy) -> int | None:
        """Let the successor lead that the entry names; see `moves.named`. None: there is none that may.

        Returns the revision. Raises RevisionConflict, MetadataError.
        """
        part = state.parts.get(key)
        now = named(state, part, self._node, policy) if part is not None else None
        if part is None or now is None or now == part:
            return None
        return await self._writes.put(part_write(state, key, part, now))

    async def recovered(self, state: ClusterState, key: str) -> int:
        """Note that this node is fit again; returns a revision with that. Raises RevisionConflict, MetadataError."""
        part = state.parts.get(key)
        if part is None or self._node not in part.unfit:
            return state.revision
        fit = msgspec.structs.replace(part, unfit=tuple(node for node in part.unfit if node != self._node))
        return await self._writes.put(Write({key: fit}, {key: state.revision_of(key)}))

    async def read(self) -> ClusterState:
        """Read the state of the cluster linearizably. Raises MetadataError."""
        revision, entries = await self._store.load()
        return ClusterState.of(revision, entries)
