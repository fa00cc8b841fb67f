"""The bytes that a topic holds, which each publish to a topic with a limit asks for, and their surplus."""

from __future__ import annotations

from collections.abc import Callable

from linn.core.log.partition import Partition
from linn.core.queue.partition_queue import PartitionQueue


class HeldBytes:
    """A running sum of the bytes that a topic's partitions hold. A publish reads only changed partitions."""

    __slots__ = ("_bytes_of", "_known", "_total", "changed")

    def __init__(self, bytes_of: Callable[[int], int]) -> None:
        """`bytes_of`: what the partition of an index holds now."""
        self.changed: dict[int, None] = {}
        """Partitions that may hold more or less than when `total` was last asked."""
        self._bytes_of = bytes_of
        self._known: dict[int, int] = {}
        self._total = 0

    def total(self) -> int:
        """The bytes that are held now."""
        for index in self.changed:
            held = self._bytes_of(index)
            self._total += held - self._known.get(index, 0)
            self._known[index] = held
        self.changed.clear()
        return self._total


async def drop_surplus(partition: Partition, partition_queue: PartitionQueue | None, share: int) -> int:
    """Drop a partition's oldest records beyond its share of bytes; returns the number of records that readers had."""
    log = partition.log
    start, end = log.bounds()
    surplus = log.size_bytes() - share
    if surplus <= 0 or end <= start:
        return 0
    before = min(end, start + -(-surplus * (end - start) // log.size_bytes()), partition.high_watermark)
    if partition_queue is not None and surplus <= share:
        partition_queue.drop_waiting(before)
        before = min(before, partition_queue.trimming.trimmable_before())
    dropped = partition.readable_count(start, before)
    await log.trim(before=before)
    return dropped
