"""Deliveries, which subscriptions hand to a protocol: some batches of one partition, under one lease or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.batch.steps import Steps
from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark
from linn.core.log.storage import StoredBatch
from linn.core.loop.waiting import WaitDeadline


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
    phase: int = 0
    """Number from the native protocol, of a two-phase delivery: 1 prepare, 2 commit again; 0: there are no phases."""
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


SETTLE_STEP = 32
"""Settlements of one step, fewer if they are about many ranges: 0.3 ms."""
NOTHING = Delivery(0, 0, 0, ())


def nobody(*_: object) -> None:
    """Do nothing: the callback of a caller that needs none."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """A consumer's verdict on the records [first, end) of a partition, or on all that is left of a lease."""

    partition: int
    delivery_id: int
    first: int
    """Like `end`, -1 for all records that the lease still holds."""
    end: int
    verdict: int
    """Number from the native protocol: 0 ack, 1 nack, 2 reject, 3 extend, 4 release, 5 ready, 6 done."""
    ms: int = 0
    reason: str = ""
    """The reason of a nack or a reject, for people, of any length."""

    @property
    def is_whole(self) -> bool:
        """Whether it is about all that is left of a lease, and names no offsets."""
        return self.first == self.end == -1


@dataclass(frozen=True, slots=True)
class SettleOutcome:
    """The results of some settlements."""

    refused: Sequence[tuple[int, LinnError]]
    """(index, error): DeliveryNotCurrent, GroupFenced, LimitExceeded, SubscriptionWrongKind, PartitionUnknown."""
    awaits: Sequence[tuple[Mark, int]]
    """(mark of an internal partition, offset): the other settlements take effect once each has passed its offset."""


class Consumer(Protocol):
    """One consumer of one topic, on which a protocol's subscription runs. Used by one task, except for `settle`."""

    lease_ms: int
    """Duration of a lease; 0: records are settled on delivery, or offsets are committed instead."""

    on_ended: Callable[[], None]
    """Called when the topic was deleted or has another kind: from then on `next` only raises."""

    held: int
    """Records handed over under leases that are neither settled nor returned. 0 if there are no leases."""

    on_released: Callable[[], None]
    """Called when `held` has decreased."""

    on_lease_lost: Callable[[int, int], None]
    """Called with (partition, delivery id) when a lease ended without being settled: it expired, or its records were
    dropped.
    """

    accepts: Sequence[int]
    """The formats of bodies that are taken; a batch of another one is translated into the first of them, or cut, into
    linn's own.
    """

    takes_stored: bool
    """Set by a protocol that passes batches on unchanged: some may then stay in their files, with only their stamps
    checked. False at first.
    """

    @property
    def ended(self) -> bool:
        """Whether the topic was deleted or has another kind."""

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """Wait for records and take up to `records_max` of them; at least one, whatever its size.

        Empty if the deadline comes before there are any, or to say how far a filter has passed over others. Once
        records are taken it counts no more, so that none is given back, with an attempt used up, because reading it
        from the disk took long.

        Raises:
            LinnError: the records can't be read, or the topic is gone.
        Cancellation: taken records go back; the attempt counts.
        """

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """Carry out settlements one by one, in steps of `SETTLE_STEP`; a refused one changes nothing and does not stop
        the others.

        Raises StorageError with the last step: all are carried out, but not durably. A step is complete in itself, so
        the work may end after any.
        """

    def is_holding(self) -> bool:
        """Whether records are leased to this consumer."""

    def close(self) -> None:
        """Leave: leased records are returned, partitions go to other members. Idempotent."""
