"""Which partition of a topic the broker puts a batch into, where the producer has not said."""

from __future__ import annotations

from linn.core.batch import RecordBatch
from linn.core.batch_builder import take_batch


class PartitionChoice:
    """One topic's. Records with key hashes keep to the partition of their key; batches without take turns."""

    def __init__(self) -> None:
        self._turn = -1

    def split(self, batch: RecordBatch, partitions: int) -> list[tuple[int, RecordBatch]]:
        """The batch, or its parts, by partition. Raises BatchMalformed."""
        if partitions == 1:
            return [(0, batch)]
        hashes = batch.key_hashes
        if hashes is None:
            self._turn = (self._turn + 1) % partitions
            return [(self._turn, batch)]
        indexes: dict[int, list[int]] = {}
        # Per record, because the user asked for a place per key.
        for index, key_hash in enumerate(hashes):
            indexes.setdefault(key_hash % partitions, []).append(index)
        if len(indexes) == 1:
            return [(next(iter(indexes)), batch)]
        return [(partition, take_batch(batch, indexes[partition])) for partition in sorted(indexes)]
