"""The port of a system that is measured: start, stop, publish, consume, and name its settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, get_args

from benchmarks.peers.cargo import Supply
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun

Durability = Literal["page cache", "fsync"]
"""The promise of a confirmation: the record is with the operating system, or on stable storage."""
DURABILITIES: tuple[Durability, ...] = get_args(Durability)
Kind = Literal["queue", "stream"]
Work = Literal[
    "publish one at a time",
    "publish to a queue, a call per record",
    "consume a queue, an ack per record",
    "publish to a stream, a call per record",
    "read a stream, record by record",
    "publish to a queue in bulk",
    "consume a queue in bulk",
    "publish to a stream in bulk",
    "read a stream in bulk",
    "publish to a stream in transactions",
    "publish to a stream, by load tool",
    "read a stream, by load tool",
]
WORKS: tuple[Work, ...] = get_args(Work)


class PeerMissing(Exception):
    """A program or library that the system needs is not installed; the text says how to install it."""


class PeerFailed(Exception):
    """The system did not start, or did not do what was asked of it."""


@dataclass(frozen=True)
class Facts:
    """Facts by which a reader judges a system's figures."""

    name: str
    client: str
    """Its library, and the language of that."""
    settings: Mapping[Durability, str]
    """Settings of each durability; one that is missing is not offered."""
    calls: Mapping[Work, str]
    """The calls that each work is done with; a work that is not in here is not offered."""
    lacks: Mapping[Work, str] = field(default_factory=dict)
    """Why a work is not offered."""
    notes: tuple[str, ...] = ()


class Server(Protocol):
    """A server that runs. Topics are made and deleted outside of what is measured.

    Each method that publishes ends when all records are confirmed, with at most `plan.WINDOW` records unconfirmed at
    any time. Each method that consumes returns the values of `expected` records in the order in which they came. A
    watch runs from the first call for a record to the last confirmation, value or ack. What is not in `Facts.calls` is
    done in another way: it carries records, and is not measured.
    """

    version: str
    pids: list[int]
    """Its processes: their CPU time is the server's."""

    def create(self, topic: str, kind: Kind) -> None:
        """Make an empty topic."""

    def delete(self, topic: str) -> None:
        """Delete it with its records."""

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        """Publish each record when the one before it is confirmed; the time after each, the start first."""

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        """Publish with a call of the client per record."""

    def publish_bulk(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        """Publish with calls that take many records."""

    def work_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        """Consume from a queue record by record, with a call that acks each."""

    def work_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        """Consume from a queue with acks of many records."""

    def read_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        """Read a stream from its beginning, record by record."""

    def read_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        """Read a stream from its beginning with calls that return many records."""

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        """Let the system's own load tool publish so many records to a stream."""

    def tool_read(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        """Let it read so many from the stream's beginning."""


class TransactionalServer(Server, Protocol):
    """A server of a system that offers "publish to a stream in transactions"."""

    def publish_transactions(self, topic: str, supply: Supply, watch: Stopwatch) -> None:
        """Publish in transactions of `plan.CHUNK` records, each begun when the one before it is committed."""


class Peer(Protocol):
    """A system. Each module has its `PEERS` by name."""

    facts: Facts

    def check(self) -> None:
        """Fetch or build what comes from a registry. Raises PeerMissing."""

    def server(self, folder: Path, durability: Durability) -> AbstractContextManager[Server]:
        """Start it with its data in `folder`, and stop it. Raises PeerFailed."""
