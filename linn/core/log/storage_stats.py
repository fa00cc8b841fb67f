"""Counts of one storage's logs since the broker started, and state that their partitions share."""

from __future__ import annotations

from linn.core.log.cut_batches import CutBatches
from linn.core.log.storage import PartitionId
from linn.core.loop.histogram import Histogram


class StorageStats:
    """Counts of one `[storage.NAME]` table in use. They outlive topics, so that they never go down."""

    __slots__ = ("appends", "cut_batches", "held", "name", "producers", "sync_seconds", "untidied_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.appends = 0
        """Appended batches, those of internal logs included."""
        self.untidied_bytes = 0
        """Bytes appended to open logs since the last housekeeping of each."""
        self.producers = 0
        """Producers that the open logs remember, each counted once for each log."""
        self.sync_seconds = Histogram()
        """Duration of each sync that a confirmation waited for, or that the flusher made."""
        self.cut_batches = CutBatches()
        self.held: set[PartitionId] = set()
        """Open partitions whose readers an open transaction holds back: few, and found without a look at all others."""
