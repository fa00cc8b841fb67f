"""Copies of dead letters from topics that other brokers lead, and the port by which this broker makes copies there.

Laws: a copy is stored as `Topic.append_copy` does, without waiting for room, so that nothing of it is left to be stored
later. It has the numbers of a producer: one that is sent again is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import BatchMalformed
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.producers import numbers_of
from linn.core.queue.dead_letter_copy import place_of
from linn.core.topics.catalog import Catalog


class CopiesHere:
    """Stores the copies that other brokers send."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def store(self, topic: str, index: int, batch: RecordBatch) -> tuple[int, Mark, int]:
        """Store a numbered copy; returns its offset, and the mark that confirms it by passing an offset.

        Raises TopicUnknown, PartitionUnknown, NotLeader, TopicFull, BatchCorrupt, BatchMalformed, ProducerError,
        StorageError: nothing was stored.
        """
        target = self._catalog.led_topic(topic)
        partition = target.partition(index)
        batch.check_crc()
        if not batch.producer_id or batch.offset_span != batch.count or not batch.count:
            raise BatchMalformed("copies of dead letters have the numbers of a producer")
        numbers = numbers_of(batch)
        known = partition.find(numbers, batch.offset_span)
        if known is None:
            known = target.append_copy(partition, batch, numbers)
            return known, partition.committed, known + batch.offset_span
        return known, partition.committed, partition.repeated(known, batch.offset_span)

    async def place(self, topic: str, index: int) -> int:
        """The offset before which no copy to come can be, after all that is stored is committed.

        Raises TopicUnknown, PartitionUnknown, NotLeader.
        """
        partition: Partition = self._catalog.led_topic(topic).partition(index)
        await partition.committed.wait(partition.log.bounds()[1])
        return place_of(partition)


class PeerCopies(Protocol):
    """Copies at other brokers. Each method raises the errors of `CopiesHere`, and PeerError; it can be repeated.

    Cancellation: a copy may be stored, or not.
    """

    async def store(self, node: int, topic: str, partition: int, batch: RecordBatch) -> None:
        """Store a numbered copy, and wait until it is committed."""

    async def place(self, node: int, topic: str, partition: int) -> int:
        """See `CopiesHere.place`."""

    async def start(self, node: int, topic: str, partition: int) -> int:
        """The first offset of a partition."""

    async def read(self, node: int, topic: str, partition: int, offset: int) -> tuple[Sequence[RecordBatch], int]:
        """Read committed batches from an offset on, whether or not their transactions are; and the next offset."""


class CopyLinks(Protocol):
    """Links to the other brokers of the cluster."""

    def copies(self) -> PeerCopies:
        """Copies of this broker's dead letters at others."""
