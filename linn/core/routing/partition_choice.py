"""Choice of a topic's partition for batches whose producer has not chosen one, by asking the partitioner."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import take_steps
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError, TopicError
from linn.core.routing.budget import PublishBudget
from linn.core.routing.partitioner import DEFAULT_PARTITIONER, Partitioner


class PartitionChoice:
    """One topic's partitioner, with checks of its answers."""

    def __init__(self, topic: str, name: str, partitioner: Partitioner) -> None:
        self._topic = topic
        self._name = name
        self._partitioner = partitioner

    def split_steps(
        self, batch: RecordBatch, partitions: int, budget: PublishBudget
    ) -> Steps[list[tuple[int, RecordBatch]]]:
        """Split a batch by partition; the partitioner is asked in one step.

        Raises:
            BatchMalformed. TopicError: the partitioner fails. LimitExceeded: as `budget` says.
        """
        if partitions == 1:
            return [(0, batch)]
        place = self._place(batch, partitions, budget)
        if isinstance(place, int):
            return [(place, batch)]
        if batch.count == 1 and type(place) is list and len(place) == 1:
            (only,) = place  # As with most batches that have a key and are small.
            if type(only) is int and 0 <= only < partitions:
                return [(only, batch)]
        yield
        return (yield from self._cut_steps(batch, place, partitions, budget))

    def _place(self, batch: RecordBatch, partitions: int, budget: PublishBudget) -> int | Sequence[int]:
        """Ask the partitioner; a partition for the whole batch is checked to exist."""
        if batch.count > STEP_RECORDS and self._name == DEFAULT_PARTITIONER and batch.key_hashes is not None:
            budget.foresee(batch.count)  # Or it would look at all of them in vain.
        try:
            place = self._partitioner.place(batch, partitions)
        except LinnError:
            raise
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        if isinstance(place, int) and not 0 <= place < partitions:
            raise self._failure(f"it chose partition {place} of {partitions}")
        return place

    def _cut_steps(
        self, batch: RecordBatch, place: Sequence[int], partitions: int, budget: PublishBudget
    ) -> Steps[list[tuple[int, RecordBatch]]]:
        budget.spend(batch.count)
        try:
            count = len(place)
            indexes = yield from _indexes_by_place(place)
        except LinnError:
            raise
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        if count != batch.count:
            raise self._failure(f"it chose {counted(count, 'place')} for {counted(batch.count, 'record')}")
        if not all(isinstance(partition, int) and 0 <= partition < partitions for partition in indexes):
            raise self._failure(f"it chose a place that is none of {counted(partitions, 'partition')}")
        if len(indexes) == 1:
            return [(next(iter(indexes)), batch)]
        budget.look_into(batch)
        parts = []
        for partition in sorted(indexes):
            part = yield from take_steps(batch, indexes[partition])
            budget.hold(part)
            parts.append((partition, part))
            yield
        return parts

    def _failure(self, text: str) -> TopicError:
        return TopicError(f"partitioner {self._name} of topic {self._topic} failed: {text}")


def _indexes_by_place(places: Sequence[int]) -> Steps[dict[int, array[int]]]:
    indexes: dict[int, array[int]] = {}
    # Per record, because the user asked for a place per key.
    for index, partition in enumerate(places):
        found = indexes.get(partition)
        if found is None:
            found = indexes[partition] = array("I")
        found.append(index)
        if not index % STEP_RECORDS:
            yield
    return indexes
