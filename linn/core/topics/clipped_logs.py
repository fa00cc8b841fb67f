"""State logs that are ahead of the records of their topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from linn.core.errors.tree import DiskFull


class StateHolder(Protocol):
    """The holder of a state log, which can replace it."""

    clipped: bool
    """Whether the log is ahead of the records; events about lost records were ignored when it was read."""


class ClippedLogs:
    """State logs of one topic that are ahead of its data logs after a power loss, and that a full disk can't replace.

    Law: until they are replaced the topic stores nothing: after another crash they would mark new records as settled,
    at the offsets of lost records.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.holders: list[StateHolder] = []
        """Holders that were left at the last `check`."""

    def add(self, holders: Iterable[StateHolder | None]) -> None:
        """Add the holders whose logs are clipped."""
        self.holders += [holder for holder in holders if holder is not None and holder.clipped]

    def check(self) -> None:
        """Check that no clipped log is left. Raises DiskFull."""
        self.holders = [holder for holder in self.holders if holder.clipped]
        if self.holders:
            raise DiskFull(f"topic {self._topic} stores nothing before the disk has room for its state logs")
