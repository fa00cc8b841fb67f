"""What a subscription hands to a protocol: some batches of one partition, under one lease or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.core.log.partition import Partition
from linn.core.log.storage import StoredBatch
from linn.core.loop.waiting import WaitDeadline


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records for one consumer."""

    partition: int
    delivery_id: int
    """Of the lease; 0 where there is none. One lease may come in several deliveries."""
    attempt: int
    """1 the first time; 0 where attempts are not counted."""
    batches: Sequence[RecordBatch | StoredBatch]
    """In memory, unless `Consumer.takes_stored`. None at all: the deadline came first."""

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(batch.count for batch in self.batches)

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(batch.size for batch in self.batches)


NOTHING = Delivery(0, 0, 0, ())


def nobody(*_: object) -> None:
    """Who is told of what nobody waits for."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a consumer says of the records [first, end) of a partition."""

    partition: int
    delivery_id: int
    first: int
    end: int
    verdict: int
    """As in the native protocol: 0 ack, 1 nack, 2 reject, 3 extend, 4 release."""
    ms: int = 0


@dataclass(frozen=True, slots=True)
class SettleOutcome:
    """What became of some settlements."""

    refused: Sequence[tuple[int, LinnError]]
    """(index, error): DeliveryNotCurrent, GroupFenced, LimitExceeded, SubscriptionWrongKind, PartitionUnknown."""
    awaits: Sequence[tuple[Partition, int]]
    """(internal partition, offset): the others count once each of these is committed."""


class Consumer(Protocol):
    """One consumer of one topic: what a protocol's subscription runs on. Used by one task, but for `settle`."""

    lease_ms: int
    """How long a lease lasts; 0: records are settled on delivery, or offsets are kept instead."""

    on_ended: Callable[[], None]
    """Called when the topic is gone or has another kind: `next` can only raise any more."""

    held: int
    """Records that were handed over under leases, and are neither settled nor returned. 0 where there are no leases."""

    on_released: Callable[[], None]
    """Called when `held` has become less."""

    on_lease_lost: Callable[[int, int], None]
    """Called with (partition, delivery id) when a lease has ended that was not settled: its time is over, or its
    records were dropped."""

    takes_stored: bool
    """Set by a protocol that passes batches on as they are: some may then stay in their files, unchecked but for their
    stamps. False at first."""

    @property
    def ended(self) -> bool:
        """Whether that has happened."""

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """Wait for records and take up to `records_max` of them; at least one, whatever its size.

        Empty where the deadline came before there were any. Once records are taken it counts no more, so that
        none is given back, with an attempt used up, because reading it from the disk took long.

        Raises:
            LinnError: the records can't be read, or the topic is gone.
        Cancellation: what was taken goes back; its attempt counts.
        """

    def settle(self, settlements: Sequence[Settlement]) -> SettleOutcome:
        """Carry out settlements one by one; those that are refused change nothing and stop no other."""

    def is_holding(self) -> bool:
        """Whether records are leased to this consumer."""

    def close(self) -> None:
        """Leave: what was leased is returned, partitions go to other members. Idempotent."""
