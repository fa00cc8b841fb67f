"""The partitioner port.

Law: if a topic's partitioner is `murmur2`, keys are placed as `key_hash` does, by clients too. With any other
partitioner only the broker chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from linn.core.batch.batch import RecordBatch

DEFAULT_PARTITIONER = "murmur2"


class Partitioner(Protocol):
    """A partitioner of one topic with several partitions, for batches whose producer did not choose."""

    def place(self, batch: RecordBatch, partitions: int) -> int | Sequence[int]:
        """Choose the partition for the whole batch, or one for each of its records.

        Synchronous, in the broker's loop, once per batch, and again when a publish that waits for room is retried. An
        exception, or an invalid partition, fails the publish; nothing of it is stored.

        A batch with a `producer_id` may be sent again after a lost answer, and must be placed in the same way then, or
        it is stored twice: let the answer follow from the batch alone, from `producer_id` and `first_sequence` if from
        nothing else.
        """


@dataclass(frozen=True, slots=True)
class PartitionerKind:
    """A partitioner, as a plugin registers it."""

    name: str
    """The value of `partitioner =` in a topic."""
    make: Callable[[], Partitioner]
    """Makes the partitioner of one topic. Does no I/O."""
    settings: None = None
    """None: partitioners have no settings."""
