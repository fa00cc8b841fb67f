"""Batches and messages of a consumer, which can be settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple, Protocol

from linn.client.arguments import HeadersInput, checked_headers
from linn.client.connection.connection import Connection
from linn.client.connection.replying import is_delivered
from linn.client.consume.processing import OnError, Processing
from linn.client.consume.received import ReceivedBatch, ReceivedMessage
from linn.client.consume.settling import Delivery, PendingSettlement, Settled
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import SubscriptionWrongKind
from linn.wire.messages import Verdict

NO_REPLY = "fetched records have no consumer that could reply: use client.reply(message.reply_to, ...)"


class Source(Protocol):
    """The subscription that delivered a batch."""

    leased: bool
    """Whether its records are leased until they are settled."""
    waits_for_acks: bool
    """Whether the broker expects acks."""
    last_ack: PendingSettlement | None
    """The latest settlement, if it is an unsent ack."""
    connection: Connection
    check_loop: Callable[[], None]
    """Check that raises ClientUnreachable in any other event loop or thread than the client's."""

    def settle(self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle offsets `first` to `end` (exclusive)."""

    def wants(self, batch: Batch) -> bool:
        """Tell whether an arrived batch is still to be handed out."""

    def handed_over(self, batch: Batch) -> None:
        """Count a batch as taken by the application, or as dropped."""


class Batch(ReceivedBatch):
    """Records of one partition, in order. `len`, iteration and `values` leave out the records before `first`.

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
        """Acknowledge all records; on a stream, commit the offset behind them. Waiting for the result is optional.

        Example:
            await batch.ack()  # or without await: refusals are raised by the next step
        """
        return self._settle(self._first, self.records.count, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled:
        """Return all records for redelivery, after `delay_ms`, or after the topic's configured delay if that is 0.

        On a stream, the group reads on from the first record. `reason` is for people: a dead letter has the last one.

        Example:
            await batch.nack(delay_ms=500)
        """
        return self._settle(self._first, self.records.count, Verdict.NACK, delay_ms, reason)

    def reject(self, reason: str = "") -> Settled:
        """Reject all records: they go to the dead-letter topic, with the first 255 bytes of the reason.

        Example:
            await batch.reject("the currency is unknown")
        """
        return self._settle(self._first, self.records.count, Verdict.REJECT, 0, reason)

    def extend(self, lease_ms: int) -> Settled:
        """Extend the lease of all records to `lease_ms` from now.

        Example:
            await batch.extend(lease_ms=60_000)
        """
        return self._settle(self._first, self.records.count, Verdict.EXTEND, lease_ms)

    def process(self, on_error: OnError = "nack", delay_ms: int = 0) -> Processing[Batch]:
        """Settle when an `async with` block is left: ack, or nack or reject if the block raises.

        The error's type and first line are the reason. Cancellation settles nothing. The block's error is raised on,
        or else a refusal of the ack; an ack that a lost connection made void raises nothing.

        Example:
            async with batch.process(on_error="reject"):
                print(batch.values)
        """
        return Processing(self, on_error, delay_ms)

    def _settle(self, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind if they were fetched and not delivered."""
        subscription, delivery = self._subscription, self._delivery
        if subscription is None or delivery is None:
            raise SubscriptionWrongKind("fetched records can't be settled: no consumer received them")
        return subscription.settle(delivery, self._offset(first), self._offset(end), verdict, ms, reason)

    async def _reply(self, index: int, value: bytes | None, headers: HeadersInput | None) -> bool:
        """Reply to a record by index; see `Message.reply`."""
        subscription = self._subscription
        if subscription is None:
            raise SubscriptionWrongKind(NO_REPLY)
        subscription.check_loop()
        message, checked = Message(self, index), checked_headers(headers)
        if message.reply_to is None:
            return False
        return await is_delivered(subscription.connection, message.reply_to, value, checked, message.id)

    def _is_wanted(self) -> bool:
        """Tell whether the batch is still to be handed out: its lease or its partition may be lost."""
        return self._subscription is None or self._subscription.wants(self)

    def _handed_over(self) -> None:
        """Tell the subscription that the application has the batch, or that it was dropped."""
        if self._subscription is not None:
            self._subscription.handed_over(self)


class Message(ReceivedMessage, gc=False, eq=False, frozen=True):
    """One record. Its properties are read from the batch on access.

    Example:
        message = await anext(consumer)
        print(message.value, message.key, dict(message.labels), message.offset)
    """

    batch: Batch

    def ack(self) -> Settled:
        """Acknowledge the message; on a stream, commit the offset behind it. Waiting for the result is optional.

        Example:
            await message.ack()  # or without await: refusals are raised by the next step
        """
        batch, index = self.batch, self.index
        subscription = batch._subscription
        last = subscription.last_ack if subscription is not None else None
        is_dense = batch._deltas is None  # Inlined: a call per record would cost a tenth of an ack.
        offset = batch._base_offset + index if is_dense else batch._offset(index)
        if last is not None and last.end == offset and last.delivery is batch._delivery:
            # The most common case: the record follows the one acked last, and that ack was not sent yet.
            subscription.check_loop()  # type: ignore[union-attr] # It has a last ack, so it is not None.
            last.end = offset + 1 if is_dense else batch._offset(index + 1)
            return last
        return batch._settle(index, index + 1, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled:
        """Return the message for redelivery, after `delay_ms`, or after the topic's configured delay if that is 0.

        On a stream, the group reads on from it. `reason` is for people: a dead letter has the last one.

        Example:
            await message.nack(delay_ms=500, reason="the database is away")
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.NACK, delay_ms, reason)

    def reject(self, reason: str = "") -> Settled:
        """Reject the message: it goes to the dead-letter topic, with the first 255 bytes of the reason.

        Example:
            await message.reject("the currency is unknown")
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.REJECT, 0, reason)

    def extend(self, lease_ms: int) -> Settled:
        """Extend the lease to `lease_ms` from now.

        Example:
            await message.extend(lease_ms=60_000)
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.EXTEND, lease_ms)

    async def reply(self, value: bytes | None, *, headers: HeadersInput | None = None) -> bool:
        """Reply to the program that waits in `Client.request`; return whether the reply has reached it.

        It has not if the message asks for no reply, if the requester is gone or does not read, and perhaps if a
        connection was lost. A reply settles nothing: ack the message as well. A message that is delivered again is
        replied to again, and a requester takes the first reply.

        Raises MessageInvalid, MessageTooLarge; SubscriptionWrongKind: the message was fetched, see `Client.reply`.
        Cancellation: the reply may have been sent.

        Example:
            await message.reply(message.text.upper().encode())
            await message.ack()
        """
        return await self.batch._reply(self.index, value, headers)

    def process(self, on_error: OnError = "nack", delay_ms: int = 0) -> Processing[Message]:
        """Settle when an `async with` block is left: ack, or nack or reject if the block raises.

        The error's type and first line are the reason. Cancellation settles nothing. The block's error is raised on,
        or else a refusal of the ack; an ack that a lost connection made void raises nothing.

        Example:
            async with message.process(on_error="reject"):
                print(message.value)
        """
        return Processing(self, on_error, delay_ms)


class FetchedBatches(NamedTuple):
    """Batches from the requested offset on, and the partition's bounds.

    Example:
        fetched = await client.fetch("prices", 0, 0)
    """

    batches: list[Batch]
    start_offset: int
    """First offset that can be read."""
    high_watermark: int
    """Offset after the last readable record."""
    next_offset: int
    """Offset at which to go on: no requested record lies between the last batch and this offset."""
    leader_epoch: int
    """Leader epoch of the broker at the read: pass it to the next `fetch`."""
