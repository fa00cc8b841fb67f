"""Deliveries: batches of one partition for one consumer, under a lease or without one."""

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
    """Id of the lease, unique to this delivery; 0 if there is none."""
    attempt: int
    """1 the first time; 0 if attempts are not counted."""
    batches: Sequence[RecordBatch | StoredBatch]
    """The records, in memory unless `Consumer.takes_stored`. Empty if the deadline came first."""
    passed_to: int = 0
    """Without batches: the offset below which the partition has no more records for this consumer; 0: unknown."""
    phase: Phase = Phase.NONE
    settled_before: int = 0
    """In a two-phase delivery, the offset below which every record is durably settled."""

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(batch.count for batch in self.batches)

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(batch.size for batch in self.batches)


NOTHING = Delivery(0, 0, 0, ())
