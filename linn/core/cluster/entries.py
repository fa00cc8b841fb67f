"""Entries of the metadata store about the cluster itself: nodes, sessions, the controller, who leads what.

    cluster                 {id, level, secret_check}
    nodes/N                 {folder_id, host, rack, draining, leaving, session, handled}
    sessions/N              {session, since_ms, addresses, levels, lost}      under the session's lease
    versions/N              "0.1.0"                                           of linn; under the same lease
    controller              {node, session}                                   under a lease; its revision is the epoch
    parts/TOPIC ID/N        {leader, session, epoch, isr, replicas, target, former, successor, unfit}
    ended/N                 [{session, at_ms, reason}]                        the last ends of sessions
    counters/starts         number

Law: an entry is checked whole when it is read. One of another shape is an error and never left out: a decision without
it could be a wrong one. Keys of other parts of linn, such as `topics/`, are theirs to check. So a new field needs a new
level (`linn/core/metadata/levels.py`); a new key does not, as older brokers leave it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

from linn.core.errors.cluster import LevelTooLow, MetadataInvalid, MetadataLater
from linn.core.metadata.levels import LEVEL, LEVEL_MIN
from linn.core.metadata.store import Stored

ENDS_MAX = 8
"""Ends of a node's sessions that are kept, the latest: enough to see that a node comes and goes."""

CLUSTER: Final = "cluster"
CONTROLLER: Final = "controller"
STARTS: Final = "counters/starts"
NODES: Final = "nodes/"
SESSIONS: Final = "sessions/"
VERSIONS: Final = "versions/"
PARTS: Final = "parts/"
ENDED: Final = "ended/"

NodeNumber = Annotated[int, msgspec.Meta(ge=1)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Loss = Literal["none", "memory", "tail", "all"]
"""Loss of a process: nothing, the data in memory, the unsynced ends of logs, everything."""
LOSSES: tuple[Loss, ...] = ("none", "memory", "tail", "all")
"""From the least to the greatest."""
EndReason = Literal["given up", "left"]


class ClusterEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cluster as a whole."""

    id: Id
    level: Annotated[int, msgspec.Meta(ge=LEVEL_MIN)]
    """The level that all nodes know, and may use. An operator raises it."""
    secret_check: str = ""
    """A keyed hash of the id, by which a node knows whether it has the secret of the others; "": none has one yet."""


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A node, alive or not."""

    folder_id: Id
    """The data folder that belongs to this number."""
    host: Text
    rack: Text
    draining: bool = False
    """Whether it gets no topics, and leads only topics that no other node can lead: an operator's decision."""
    leaving: bool = False
    """Whether its replicas go to other nodes as well. Such a node is draining."""
    session: str = ""
    """The last session that was registered; "": none."""
    handled: str = ""
    """The session whose loss the controller has handled. It stands here because only the holder of a session's lease
    can write to its entry."""


class SessionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's session, as long as its lease lasts: another one for each process and each lease."""

    session: Id
    since_ms: int
    """When it began, by the clock of the node."""
    addresses: dict[str, Text]
    """Addresses by listener, as others reach them."""
    levels: tuple[int, int]
    """The least and the greatest level that the node understands."""
    lost: Loss = "none"
    """Loss of the node, told in each session until the controller has handled it."""


class ControllerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The controller."""

    node: NodeNumber
    session: Id


class PartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One partition with all its logs: who leads it, and who holds all of it."""

    leader: Annotated[int, msgspec.Meta(ge=0)]
    """0: no node has led it yet."""
    session: str
    """The session in which the leader was elected."""
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    isr: tuple[NodeNumber, ...]
    """Nodes that hold all that is committed. Empty: the last one has lost it, and an operator has to decide."""
    replicas: Annotated[tuple[NodeNumber, ...], msgspec.Meta(min_length=1)]
    """The preferred leader first."""
    target: tuple[NodeNumber, ...] = ()
    """Replicas after the reassignment in progress; empty: there is none. Until it is done, `replicas` has the former
    ones and these."""
    former: tuple[NodeNumber, ...] = ()
    """Replicas before the reassignment in progress. The same as `target`: it is being cancelled."""
    successor: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The member to which the leader is to hand over; 0: it leads on."""
    unfit: tuple[NodeNumber, ...] = ()
    """Members whose disk takes no records: they lead only if no other member can. And nodes outside of the in-sync set
    whose log was damaged: they are not added before they have begun anew. Each node ends its own mark."""


class SessionEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a session."""

    session: Id
    at_ms: int
    """When it was noticed, by the clock of who noticed it."""
    reason: EndReason


Entry = ClusterEntry | NodeEntry | SessionEntry | ControllerEntry | PartEntry | tuple[SessionEnd, ...] | str | int


@dataclass(slots=True)
class ClusterState:
    """All entries about the cluster, decoded, with the revisions of their keys."""

    revision: int = 0
    cluster: ClusterEntry | None = None
    nodes: dict[int, NodeEntry] = field(default_factory=dict)
    sessions: dict[int, SessionEntry] = field(default_factory=dict)
    versions: dict[int, str] = field(default_factory=dict)
    """Versions of linn."""
    controller: ControllerEntry | None = None
    parts: dict[str, PartEntry] = field(default_factory=dict)
    """By key."""
    ended: dict[int, tuple[SessionEnd, ...]] = field(default_factory=dict)
    starts: int = 0
    revisions: dict[str, int] = field(default_factory=dict)
    """Revisions of these keys, for conditions."""

    @classmethod
    def of(cls, revision: int, entries: Mapping[str, Stored]) -> ClusterState:
        """Decode a snapshot. Raises MetadataInvalid."""
        state = cls()
        state.apply(revision, entries)
        return state

    @property
    def level(self) -> int:
        """The level of the cluster; without one, that of a new one."""
        return self.cluster.level if self.cluster is not None else LEVEL

    def check_level(self, least: int, what: str) -> None:
        """Refuse what needs a greater level. Raises LevelTooLow."""
        if self.level < least:
            text = f"{what} need a cluster of level {least}, and this one has level {self.level}"
            raise LevelTooLow(f"{text}: run linn cluster upgrade once all brokers are of the new version")

    def revision_of(self, key: str) -> int:
        """The revision of a key, for a condition: ABSENT if there is none."""
        return self.revisions.get(key, 0)

    def apply(self, revision: int, changes: Mapping[str, Stored | None]) -> None:
        """Take changes over; None removes a key.

        Raises MetadataInvalid: nothing was taken over.
        """
        decoded = {key: _decoded(key, stored.value) for key, stored in changes.items() if stored is not None}
        for key, stored in changes.items():
            entry = decoded.get(key)
            if stored is None:
                self.revisions.pop(key, None)
            elif entry is not None:
                self.revisions[key] = stored.revision
            if stored is None or entry is not None:
                self._put(key, entry)
        self.revision = revision

    def _put(self, key: str, entry: Any) -> None:
        """Put a decoded entry in its place; None removes it."""
        if key == CLUSTER:
            self.cluster = entry
        elif key == CONTROLLER:
            self.controller = entry
        elif key == STARTS:
            self.starts = entry or 0
        elif key.startswith(PARTS):
            _put(self.parts, key, entry)
        else:
            prefix, _, number = key.partition("/")
            tables: dict[str, dict[int, Any]] = {"nodes": self.nodes, "sessions": self.sessions, "ended": self.ended}
            tables["versions"] = self.versions
            if prefix in tables and _is_node(number):
                _put(tables[prefix], int(number), entry)


def _put(table: dict[Any, Any], key: object, entry: object) -> None:
    if entry is None:
        table.pop(key, None)
    else:
        table[key] = entry


_NUMBERED: Mapping[str, Any] = {
    "nodes": NodeEntry,
    "sessions": SessionEntry,
    "versions": Text,
    "ended": tuple[SessionEnd, ...],
}
_SINGLE: Mapping[str, Any] = {
    CLUSTER: ClusterEntry,
    CONTROLLER: ControllerEntry,
    STARTS: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)],
}
"""Starts are parts of the ids of producers, which have 31 bits for them."""


def _decoded(key: str, value: Any) -> Any:
    """Decode one entry; None if its key belongs to another part of linn. Raises MetadataInvalid."""
    prefix, _, rest = key.partition("/")
    kind = _SINGLE.get(key)
    if prefix == "parts":
        kind = PartEntry
    elif prefix in _NUMBERED:
        if not _is_node(rest):
            raise MetadataInvalid(f"the metadata store has the key {key!r:.80}, which ends in no node's number")
        kind = _NUMBERED[prefix]
    if kind is None:
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MetadataInvalid(f"the metadata store's entry {key:.80} is not as linn writes it: {error}") from error


def _is_node(text: str) -> bool:
    return text.isascii() and text.isdigit() and text[:1] != "0"


def check_level(entries: Mapping[str, Stored | None], greatest: int) -> None:
    """Refuse the metadata of other versions, whatever its shape. Raises MetadataLater, MetadataInvalid: an old one."""
    stored = entries.get(CLUSTER)
    level = stored.value.get("level") if stored is not None and isinstance(stored.value, dict) else None
    if type(level) is int and level > greatest:
        text = f"the cluster has level {level}, and this version of linn knows up to level {greatest}"
        raise MetadataLater(f"{text}: use the version that the other nodes have")
    if type(level) is int and level < LEVEL_MIN:
        text = f"the cluster has level {level}, and this version of linn knows no level below {LEVEL_MIN}"
        raise MetadataInvalid(f"{text}: raise it with the version before, by linn cluster upgrade")


def with_end(ends: tuple[SessionEnd, ...], end: SessionEnd) -> tuple[SessionEnd, ...]:
    """The ends of a node's sessions with one more, the latest last."""
    return (*ends, end)[-ENDS_MAX:]


def unnoted_session(state: ClusterState, node: int) -> str | None:
    """The session of a node that has ended without a note of it; None if there is none."""
    entry = state.nodes.get(node)
    if entry is None or not entry.session or node in state.sessions:
        return None
    noted = any(end.session == entry.session for end in state.ended.get(node, ()))
    return None if noted else entry.session
