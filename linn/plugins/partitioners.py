"""The built-in partitioners: `partitioner =` in a topic.

`murmur2` is Kafka's default: a key has one partition, and batches without keys stay whole (KIP-480). The other two
ignore keys. Kafka chooses the next partition at random; these partitioners use the partitions in turn, so that all get
their share.

A numbered batch may be sent again and must go to the same partitions, so its numbers choose them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from linn.api import PartitionerKind, RecordBatch, hookimpl

_NUMBERS = struct.Struct("<qI")


class StickyPartitioner:
    """A partitioner that puts each batch into the next partition, or the one chosen by its numbers. It ignores keys."""

    def __init__(self) -> None:
        self._turn = -1

    def place(self, batch: RecordBatch, partitions: int) -> int | Sequence[int]:
        """Choose the next partition in turn, or the one chosen by the batch's numbers."""
        if batch.producer_id:
            return int(crc32c(_NUMBERS.pack(batch.producer_id, batch.first_sequence))) % partitions
        self._turn = (self._turn + 1) % partitions
        return self._turn


class Murmur2Partitioner:
    """A partitioner by the hash of a record's key; a batch without key hashes goes to one partition, in turn."""

    def __init__(self) -> None:
        self._sticky = StickyPartitioner()

    def place(self, batch: RecordBatch, partitions: int) -> int | Sequence[int]:
        """Choose by the batch's key hashes, if it has any."""
        hashes = batch.key_hashes
        if hashes is None:
            return self._sticky.place(batch, partitions)
        return [key_hash % partitions for key_hash in hashes]


class RoundRobinPartitioner:
    """A partitioner that puts each record into the next partition and ignores keys. Batches become small."""

    def __init__(self) -> None:
        self._next = 0

    def place(self, batch: RecordBatch, partitions: int) -> int | Sequence[int]:
        """Choose one partition per record."""
        first = self._next
        if batch.producer_id:
            first = batch.first_sequence
        else:
            self._next = (first + batch.count) % partitions
        return [index % partitions for index in range(first, first + batch.count)]


@hookimpl
def linn_register_partitioner() -> list[PartitionerKind]:
    """Register `partitioner = "murmur2"`, `"sticky"` and `"round-robin"`."""
    return [
        PartitionerKind("murmur2", Murmur2Partitioner),
        PartitionerKind("sticky", StickyPartitioner),
        PartitionerKind("round-robin", RoundRobinPartitioner),
    ]
