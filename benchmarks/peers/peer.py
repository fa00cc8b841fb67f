"""What a system has to be able to do to be measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.peers.cargo import Supply, Tally
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun

Durability = Literal["page cache", "fsync"]
"""What a confirmation promises: the record is with the operating system, or on stable storage."""
DURABILITIES: tuple[Durability, ...] = ("page cache", "fsync")
Kind = Literal["queue", "stream"]


class PeerMissing(Exception):
    """A package that the system needs is not installed; the text says how to install it."""


class PeerFailed(Exception):
    """The system did not start, or did not do what was asked of it."""


@dataclass(frozen=True)
class Facts:
    """What a reader has to know to judge a system's figures."""

    name: str
    client: str
    """Its library, and what that is written in."""
    tool: str
    """Its own load tool, or why there is none."""
    settings: Mapping[Durability, str]
    """By which the durability is had; one that is not there is not offered."""
    queue: str
    """What "a queue with acks" is here."""
    batched: str
    """What is under way at the same time when publishing is batched."""
    notes: tuple[str, ...] = field(default=())


class Server(Protocol):
    """A server that runs. Topics are made and deleted outside of what is measured."""

    version: str
    pids: list[int]
    """Of its processes: their CPU time is the server's."""

    def create(self, topic: str, kind: Kind) -> None:
        """Make an empty topic."""

    def delete(self, topic: str) -> None:
        """Delete it with its records."""

    def publish_singly(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> list[float]:
        """Publish each record when the one before it is confirmed; the seconds that each took."""

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        """Publish in the way that is fastest, and wait until all records are confirmed."""

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        """Read a stream from its beginning until the tally is full."""

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        """Consume from a queue and ack all records, until the tally is full and the last ack is out."""

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        """Let the system's own load tool publish so many records; None where there is none."""

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        """Let it consume so many; None where there is none."""


class Peer(Protocol):
    """A system. Each module has its `PEERS` by name."""

    facts: Facts
    tool_kind: Kind
    """Of the topic that its load tool uses."""
    warm_up_s: float
    """Of publishing in each way, after a start: how long the server compiles itself."""

    def check(self) -> None:
        """Raises PeerMissing."""

    def server(self, folder: Path, durability: Durability) -> AbstractContextManager[Server]:
        """Start it with its data in `folder`, and end it. Raises PeerFailed."""
