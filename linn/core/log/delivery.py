"""What a subscription hands to a protocol: some batches of one partition, under one lease or none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.core.log.partition import Partition
from linn.core.log.storage import StoredBatch


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records for one consumer."""

    partition: int
    delivery_id: int
    """Of the lease; 0 where there is none. One lease may come in several deliveries."""
    attempt: int
    """1 the first time; 0 where attempts are not counted."""
    batches: Sequence[RecordBatch | StoredBatch]
    """In memory, unless `Consumer.takes_stored`. None at all: patience ended."""

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


class Patience:
    """How long somebody waits for records: until a time, or until `end`."""

    def __init__(self, wait_s: float = math.inf) -> None:
        self._until = trio.current_time() + wait_s
        self._scope: trio.CancelScope | None = None

    def end(self) -> None:
        """Wait no longer. Idempotent."""
        self._until = -math.inf
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, something: Callable[[], Awaitable[None]]) -> bool:
        """Wait for something; False where patience ended first."""
        with trio.CancelScope(deadline=self._until) as self._scope:
            await something()
            return True
        return False


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

    async def next(self, records_max: int, bytes_max: int, patience: Patience) -> Delivery:
        """Wait for records and take up to `records_max` of them; at least one, whatever its size.

        Empty where patience has ended before there were any. Once records are taken patience counts no more, so that
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


class ReadySignal:
    """Wakes those who wait for work, first come, first served; one at a time, so that each finds something.

    Law: who was woken and took work calls `notify` again if there is more; so does who was woken and took none.
    """

    def __init__(self) -> None:
        self._waiting: deque[trio.Event] = deque()

    def notify(self) -> None:
        """There may be work for one."""
        if self._waiting:
            self._waiting.popleft().set()

    def notify_all(self) -> None:
        """Wake everybody, because something changed for all."""
        while self._waiting:
            self._waiting.popleft().set()

    async def wait(self) -> None:
        """Wait to be woken. Cancellation passes the wake-up on."""
        event = trio.Event()
        self._waiting.append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self.notify()
            else:
                self._waiting.remove(event)
            raise
