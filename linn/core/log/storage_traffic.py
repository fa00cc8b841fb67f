"""What the logs of one storage did since the broker started, and what their partitions share."""

from __future__ import annotations

from linn.core.log.cut_batches import CutBatches
from linn.core.loop.histogram import Histogram


class StorageTraffic:
    """One per `[storage.NAME]` table in use. It outlives topics, so that its counts never go down."""

    __slots__ = ("appends", "cut_batches", "name", "sync_seconds", "untidied_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.appends = 0
        """Batches, those of internal logs included."""
        self.untidied_bytes = 0
        """Appended to open logs since each one's last housekeeping."""
        self.sync_seconds = Histogram()
        """How long each sync took that somebody waited for, or that the flusher made."""
        self.cut_batches = CutBatches()
