"""What a consumer hands over: batches and messages that can be settled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import repeat
from typing import NamedTuple, Protocol

from linn.client.consume.processing import OnError, Processing
from linn.client.consume.received import ReceivedBatch, ReceivedMessage
from linn.client.consume.settling import Delivery, PendingSettlement, Settled
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import SubscriptionWrongKind
from linn.wire.messages import Verdict


class Source(Protocol):
    """The subscription that a batch came by."""

    leased: bool
    """Whether its records are leased until they are settled."""
    waits_for_acks: bool
    """Whether the broker wants to hear of acks."""
    last_ack: PendingSettlement | None
    """The latest settlement, if it is an ack that was not sent yet."""
    check_loop: Callable[[], None]
    """Raises ClientUnreachable in any other event loop or thread than the client's."""

    def settle(self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int) -> Settled:
        """Settle offsets `first` to `end` (exclusive)."""

    def wants(self, batch: Batch) -> bool:
        """Tell whether a batch that arrived is still to be handed over."""

    def handed_over(self, batch: Batch) -> None:
        """Count a batch as taken by the application, or as dropped."""


class Batch(ReceivedBatch):
    """Records of one partition, in their order. `len`, iteration and `values` leave out what came before `first`.

    Example:
        batch = await consumer.next_batch()
        print(batch.partition, batch.start_offset, len(batch), [message.key for message in batch])
    """

    __slots__ = ("_subscription",)

    def __init__(
        self,
        topic: str,
        partition: int,
        records: RecordBatch,
        first: int = 0,
        delivery: Delivery | None = None,
        subscription: Source | None = None,
    ) -> None:
        super().__init__(topic, partition, records, first, delivery)
        self._subscription = subscription

    def __iter__(self) -> Iterator[Message]:
        return map(Message, repeat(self), self._indexes)

    def ack(self) -> Settled:
        """All records are done with; on a stream, the group's place is behind them. Await it, or let it be.

        Example:
            await batch.ack()  # or without await: refusals are raised by the next step
        """
        return self._settle(self._first, self.records.count, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0) -> Settled:
        """All records are to be delivered again; after `delay_ms`, or as the topic is configured where it is 0.

        On a stream, the group reads on from the first of them.

        Example:
            await batch.nack(delay_ms=500)
        """
        return self._settle(self._first, self.records.count, Verdict.NACK, delay_ms)

    def reject(self) -> Settled:
        """No record can be dealt with: to the dead-letter topic with them.

        Example:
            await batch.reject()
        """
        return self._settle(self._first, self.records.count, Verdict.REJECT, 0)

    def extend(self, lease_ms: int) -> Settled:
        """The leases last `lease_ms` from now.

        Example:
            await batch.extend(lease_ms=60_000)
        """
        return self._settle(self._first, self.records.count, Verdict.EXTEND, lease_ms)

    def process(self, on_error: OnError = "nack", delay_ms: int = 0) -> Processing[Batch]:
        """For `async with`: acked when the block is done; where it raises, nacked or rejected, and the error goes on.

        Where it is cancelled, nothing is settled. Raises what the broker refuses the ack with.

        Example:
            async with batch.process(on_error="reject"):
                print(batch.values)
        """
        return Processing(self, on_error, delay_ms)

    def _settle(self, first: int, end: int, verdict: Verdict, ms: int) -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind where they were not delivered but fetched."""
        subscription, delivery = self._subscription, self._delivery
        if subscription is None or delivery is None:
            raise SubscriptionWrongKind("fetched records are not delivered, there is nothing to settle")
        return subscription.settle(delivery, self._base_offset + first, self._base_offset + end, verdict, ms)

    def _is_wanted(self) -> bool:
        """Whether it is still to be handed over: its lease, or its partition, may be gone."""
        return self._subscription is None or self._subscription.wants(self)

    def _handed_over(self) -> None:
        """The application has it, or it was dropped."""
        if self._subscription is not None:
            self._subscription.handed_over(self)


class Message(ReceivedMessage, gc=False, eq=False, frozen=True):
    """One record. Its properties are read from the batch when they are asked for.

    Example:
        message = await anext(consumer)
        print(message.value, message.key, dict(message.labels), message.offset)
    """

    batch: Batch

    def ack(self) -> Settled:
        """It is done with; on a stream, the group's place is behind it. Await it, or let it be.

        Example:
            await message.ack()  # or without await: refusals are raised by the next step
        """
        batch, index = self.batch, self.index
        subscription = batch._subscription
        last = subscription.last_ack if subscription is not None else None
        if last is not None and last.end == batch._base_offset + index and last.delivery is batch._delivery:
            # The common case by far: the record behind the one that was acked last, which is not sent yet.
            subscription.check_loop()  # type: ignore[union-attr] # Or there would be no last ack.
            last.end += 1
            return last
        return batch._settle(index, index + 1, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0) -> Settled:
        """It is to be delivered again; after `delay_ms`, or as the topic is configured where that is 0.

        On a stream, the group reads on from it.

        Example:
            await message.nack(delay_ms=500)
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.NACK, delay_ms)

    def reject(self) -> Settled:
        """It can't be dealt with: to the dead-letter topic with it.

        Example:
            await message.reject()
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.REJECT, 0)

    def extend(self, lease_ms: int) -> Settled:
        """Its lease lasts `lease_ms` from now.

        Example:
            await message.extend(lease_ms=60_000)
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.EXTEND, lease_ms)

    def process(self, on_error: OnError = "nack", delay_ms: int = 0) -> Processing[Message]:
        """For `async with`: acked when the block is done; where it raises, nacked or rejected, and the error goes on.

        Where it is cancelled, nothing is settled. Raises what the broker refuses the ack with.

        Example:
            async with message.process(on_error="reject"):
                print(message.value)
        """
        return Processing(self, on_error, delay_ms)


class FetchedBatches(NamedTuple):
    """Batches from the offset on that was asked for, and the partition's bounds.

    Example:
        batches, start_offset, high_watermark = await client.fetch("prices", 0, 0)
    """

    batches: list[Batch]
    start_offset: int
    """The first offset that can be read."""
    high_watermark: int
    """The offset behind the last that can be read."""


Unread = tuple[Delivery, int, int]
"""Records that nobody has looked at: their lease, the first offset, and the offset behind the last."""


def is_unread_of(batch: Batch | None, subscription: Source, leases: Collection[Delivery] | None) -> bool:
    """Whether a batch came by this subscription, and under one of these leases where any are named."""
    if batch is None or batch._subscription is not subscription:
        return False
    return leases is None or batch._delivery in leases


def rest_of(batch: Batch, indexes: Iterator[int]) -> list[Unread]:
    """What is left of a batch, taken from those who iterate over its indexes. Safe beside another thread's `next`."""
    rest = list(indexes)
    if not rest or batch._delivery is None:
        return []
    return [(batch._delivery, batch._base_offset + rest[0], batch._base_offset + rest[-1] + 1)]
