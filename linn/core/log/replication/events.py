"""The inputs and outputs of the rules of replication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

EpochRow = tuple[int, int]
"""(epoch, offset of its first batch)."""


class PartView(NamedTuple):
    """The entry of the metadata store about a group: who leads it, and who holds all that is committed."""

    revision: int
    epoch: int
    leader: int
    """A node's number."""
    session: str
    """The session in which the leader was elected."""
    isr: frozenset[int]
    replicas: frozenset[int]
    """The nodes that hold the group or are to hold it."""
    unfit: frozenset[int] = frozenset()
    """Members with a full disk, and other nodes with a damaged log."""


class LogTable(NamedTuple):
    """Bounds and epochs of one log, as a follower tells them."""

    start: int
    end: int
    epochs: tuple[EpochRow, ...]
    """Ascending in both."""


class Cut(NamedTuple):
    """Drop the records of a log from an offset on; none if that is its end."""

    at: int
    producers: bytes = b""
    """A snapshot of the producers of the records before it, as the leader knows them; empty: none are told."""


class Restart(NamedTuple):
    """Drop all records of a log, and go on at the leader's start."""

    at: int
    producers: bytes = b""
    """The same as in `Cut`."""


Match = Cut | Restart
"""The beginning of an epoch at a follower, for one log."""


class Lag(NamedTuple):
    """The distance of a replica from its leader."""

    is_linked: bool
    """Whether it follows now."""
    records: int | None
    """Records of all logs that it has not acknowledged; None: it has not followed in this epoch."""
    seconds: float
    """Time since it had all that the leader had; 0: it has."""


# --- outputs ---------------------------------------------------------------------------------------------------------


class Lead(NamedTuple):
    """Begin to lead in an epoch."""

    epoch: int


class Follow(NamedTuple):
    """Follow a leader: connect to it and send `request`, a table for each log by its number."""

    leader: int
    epoch: int
    session: str
    """The session in which this node follows."""
    request: Mapping[int, LogTable]


class GoOffline(NamedTuple):
    """Serve nothing: no leader is known, or this node may no longer lead."""

    epoch: int
    reason: str


class Commit(NamedTuple):
    """Move the watermark of a log."""

    log: int
    offset: int


class Recovered(NamedTuple):
    """All that the logs held when this node was elected is committed: state machines may start."""


class ChangeIsr(NamedTuple):
    """Write another in-sync set, if the entry still has its revision, and each added node its session and no loss."""

    revision: int
    isr: frozenset[int]
    added: Mapping[int, str]
    """Sessions in which the new members follow."""


class ReadPart(NamedTuple):
    """Read the entry linearizably, and give it to `viewed`."""


Command = Lead | Follow | GoOffline | Commit | Recovered | ChangeIsr | ReadPart
