"""Counters of one storage's logs since the broker started, and state shared by their partitions."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from linn.core.batch.batch import RecordBatch
from linn.core.log.storage import PartitionId
from linn.core.loop.histogram import Histogram


class StorageStats:
    """Counters of a `[storage.NAME]` table. They outlive topics, so that they never decrease."""

    __slots__ = ("appends", "cut_batches", "held", "name", "producers", "sync_seconds", "untidied_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.appends = 0
        """Appended batches, including batches of internal logs."""
        self.untidied_bytes = 0
        """Bytes appended to open logs since their last housekeeping."""
        self.producers = 0
        """Producers that the open logs remember, counted once per log."""
        self.sync_seconds = Histogram()
        """Duration of each sync that a confirmation waited for or that the flusher made."""
        self.cut_batches = CutBatches()
        self.held: set[PartitionId] = set()
        """Open partitions whose readers an open transaction holds back; kept to avoid a search of all partitions."""


BYTES_MAX = 32 << 20
"""Limit of the cache: two of the largest batches with their decompressed bodies, or the batches of hundreds of
partitions.
"""
BYTES_MIN = 16 << 10
"""Smallest batch worth caching: decoding a smaller one costs less than a system call."""


class CutBatches:
    """Cached batches, shared by the partitions of one storage.

    A queue consumed record by record, or a reader with little credit, cuts the same batch again and again. Laws: at
    most one batch per partition, the last one cut; `BYTES_MAX` in all; every cached batch is also in the log.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[object, RecordBatch] = WeakKeyDictionary()
        """Cached batch by partition, held weakly; most recent last."""

    def __len__(self) -> int:
        return len(self._kept)

    def at(self, partition: object, offset: int) -> RecordBatch | None:
        """The batch that holds `offset`, if it is cached."""
        batch = self._kept.get(partition)
        return batch if batch is not None and batch.base_offset <= offset < batch.end_offset else None

    def forget(self, partition: object) -> None:
        """Drop the batch of a partition whose log was cut."""
        self._kept.pop(partition, None)

    def keep(self, partition: object, batch: RecordBatch) -> None:
        """Cache a batch of which another part may be needed; the least recent batches make room."""
        if batch.size >= BYTES_MIN and _bytes_of(batch) <= BYTES_MAX:
            kept = self._kept
            kept.pop(partition, None)
            kept[partition] = batch
            total = sum(map(_bytes_of, kept.values()))
            for oldest in list(kept)[:-1]:
                if total <= BYTES_MAX:
                    break
                total -= _bytes_of(kept.pop(oldest))


def _bytes_of(batch: RecordBatch) -> int:
    """The size of a batch, with everything read together with it and its decompressed body."""
    return memoryview(batch.message.obj).nbytes + (batch.body_bytes if batch.codec else 0)
