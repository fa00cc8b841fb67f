"""The partitioner port.

Law: where a topic's partitioner is `murmur2`, keys are placed as `key_hash` has it, by clients too. With any other
partitioner the broker chooses, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from linn.core.batch.batch import RecordBatch

DEFAULT_PARTITIONER = "murmur2"


class Partitioner(Protocol):
    """Chooses among the partitions of one topic, which has more than one, for batches whose producer did not."""

    def place(self, batch: RecordBatch, partitions: int) -> int | Sequence[int]:
        """The partition for the whole batch, or one for each of its records.

        Synchronous, in the broker's loop, once per batch; a publish that waits for room is asked about again when it is
        tried again. An exception, or a place that is none, fails the publish; nothing of it is stored.
        """


@dataclass(frozen=True, slots=True)
class PartitionerKind:
    """What a plugin registers."""

    name: str
    """The value of `partitioner =` in a topic."""
    make: Callable[[], Partitioner]
    """Makes the partitioner of one topic. Does no I/O."""
    settings: None = None
    """There is no table for them."""
