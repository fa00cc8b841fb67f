"""Which partition of a topic the broker puts a batch into, where the producer has not said: asks the partitioner."""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.batch import RecordBatch
from linn.core.batch_builder import take_batch
from linn.core.errors import LinnError, TopicError
from linn.core.partitioner import Partitioner


class PartitionChoice:
    """One topic's."""

    def __init__(self, topic: str, name: str, partitioner: Partitioner) -> None:
        self._topic = topic
        self._name = name
        self._partitioner = partitioner

    def split(self, batch: RecordBatch, partitions: int) -> list[tuple[int, RecordBatch]]:
        """The batch, or its parts, by partition. Raises BatchMalformed; TopicError where the partitioner fails."""
        if partitions == 1:
            return [(0, batch)]
        try:
            place = self._partitioner.place(batch, partitions)
            count = batch.count if isinstance(place, int) else len(place)
            indexes = {} if isinstance(place, int) else _indexes_by_place(place)
        except LinnError:
            raise
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        if isinstance(place, int):
            if not 0 <= place < partitions:
                raise self._failure(f"it chose partition {place} of {partitions}")
            return [(place, batch)]
        if count != batch.count:
            raise self._failure(f"it chose {count} places for {batch.count} records")
        if not all(isinstance(partition, int) and 0 <= partition < partitions for partition in indexes):
            raise self._failure(f"it chose a place that is none of {partitions} partitions")
        if len(indexes) == 1:
            return [(next(iter(indexes)), batch)]
        return [(partition, take_batch(batch, indexes[partition])) for partition in sorted(indexes)]

    def _failure(self, text: str) -> TopicError:
        return TopicError(f"partitioner {self._name} of topic {self._topic} failed: {text}")


def _indexes_by_place(places: Sequence[int]) -> dict[int, list[int]]:
    indexes: dict[int, list[int]] = {}
    # Per record, because the user asked for a place per key.
    for index, partition in enumerate(places):
        indexes.setdefault(partition, []).append(index)
    return indexes
