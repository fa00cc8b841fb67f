"""State logs that speak of records which a power failure took, on a disk without room to replace them.

Law: until they are replaced the topic stores nothing. After another crash they would say of new records, at the offsets
of those that are gone, that they are settled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from linn.core.errors.tree import DiskFull


class StateHolder(Protocol):
    """Who has a state log, and replaces it."""

    clipped: bool
    """Whether the log says more than the records allow; it was read without that."""


class ClippedLogs:
    """Those of one topic. `len` is how many are left, as of the last `check`."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._holders: list[StateHolder] = []

    def add(self, holders: Iterable[StateHolder | None]) -> None:
        """Look after those that are clipped."""
        self._holders += [holder for holder in holders if holder is not None and holder.clipped]

    def check(self) -> None:
        """Raises DiskFull while one is left."""
        self._holders = [holder for holder in self._holders if holder.clipped]
        if self._holders:
            raise DiskFull(f"topic {self._topic} stores nothing before the disk has room for its state logs")

    def __len__(self) -> int:
        return len(self._holders)
