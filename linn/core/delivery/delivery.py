"""Deliveries: some batches of one partition, handed to one consumer under one lease or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linn.core.batch.batch import RecordBatch
from linn.core.delivery.vocabulary import Phase
from linn.core.log.storage import StoredBatch


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records for one consumer."""

    partition: int
    delivery_id: int
    """Id of the lease, which is of this delivery alone; 0 if there is none."""
    attempt: int
    """1 the first time; 0 where attempts are not counted."""
    batches: Sequence[RecordBatch | StoredBatch]
    """The records, in memory unless `Consumer.takes_stored`. Empty if the deadline came first."""
    passed_to: int = 0
    """Without batches: the offset before which the partition has no more records for this consumer; 0: not known."""
    phase: Phase = Phase.NONE
    settled_before: int = 0
    """Offset before which every record is settled, durably, in a two-phase delivery."""

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(batch.count for batch in self.batches)

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(batch.size for batch in self.batches)


NOTHING = Delivery(0, 0, 0, ())
