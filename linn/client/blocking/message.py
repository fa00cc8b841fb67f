"""Batches and messages of a blocking consumer, which any thread may read and settle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import repeat
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

from linn.client.arguments import U32_MAX, checked_number
from linn.client.blocking.settling import Settled
from linn.client.consume import message as asynchronous
from linn.client.consume.processing import OnError, check_on_error, reason_of
from linn.client.consume.received import ReceivedBatch, ReceivedMessage
from linn.client.consume.settling import is_void
from linn.core.errors.tree import LinnError, SubscriptionWrongKind
from linn.wire.messages import Verdict

Settle = Callable[[asynchronous.Batch, int, int, Verdict, int, str], Settled]
"""Settles the records of a batch from one index up to another."""


class Batch(ReceivedBatch):
    """Records of one partition, in order. `len`, iteration and `values` leave out the records before `first`.

    Example:
        batch = consumer.next_batch()
        print(batch.partition, batch.start_offset, len(batch), [message.key for message in batch])
    """

    __slots__ = ("_origin", "_settle_origin")

    def __init__(self, origin: asynchronous.Batch, settle: Settle | None = None) -> None:
        super().__init__(origin.topic, origin.partition, origin.records, origin._first, origin._delivery)
        self._origin = origin
        """The loop's batch."""
        self._settle_origin = settle
        """The consumer's method, which keeps the consumer alive for as long as the batch; None for a fetched batch."""

    def __iter__(self) -> Iterator[Message]:
        return map(Message, repeat(self), self._indexes)

    def ack(self) -> Settled:
        """Acknowledge all records; on a stream, commit the offset behind them. Waiting for the result is optional.

        Example:
            batch.ack().wait()  # or without wait(): refusals are raised by the next step
        """
        return self._settle(self._first, self.records.count, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled:
        """Return all records for redelivery, after `delay_ms`, or after the topic's configured delay if that is 0.

        On a stream, the group reads on from the first of them. `reason` is for people: a dead letter has the last one.

        Example:
            batch.nack(delay_ms=500)
        """
        return self._settle(self._first, self.records.count, Verdict.NACK, delay_ms, reason)

    def reject(self, reason: str = "") -> Settled:
        """Reject all records: they go to the dead-letter topic, with the reason, of which 255 bytes are kept.

        Example:
            batch.reject("the currency is unknown")
        """
        return self._settle(self._first, self.records.count, Verdict.REJECT, 0, reason)

    def extend(self, lease_ms: int) -> Settled:
        """Extend the lease of all records to `lease_ms` from now.

        Example:
            batch.extend(lease_ms=60_000).wait()
        """
        return self._settle(self._first, self.records.count, Verdict.EXTEND, lease_ms)

    def process(self, on_error: OnError = "nack", delay_ms: int = 0) -> Processing[Batch]:
        """Settle when a `with` block is left: ack, or nack or reject if the block raises.

        The error's type and first line are the reason. An interrupt (KeyboardInterrupt) settles nothing. The block's
        error is raised on, or else a refusal of the ack, but not that a lost connection made it void.

        Example:
            with batch.process(on_error="reject"):
                print(batch.values)
        """
        return Processing(self, on_error, delay_ms)

    def _settle(self, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind if they were fetched and not delivered."""
        if self._settle_origin is None:
            raise SubscriptionWrongKind("fetched records can't be settled: no consumer received them")
        return self._settle_origin(self._origin, first, end, verdict, ms, reason)


class Message(ReceivedMessage, gc=False, eq=False, frozen=True):
    """One record. Its properties are read from the batch on access.

    Example:
        message = next(consumer)
        print(message.value, message.key, dict(message.labels), message.offset)
    """

    batch: Batch

    def ack(self) -> Settled:
        """Acknowledge the message; on a stream, commit the offset behind it. Waiting for the result is optional.

        Example:
            message.ack().wait()  # or without wait(): refusals are raised by the next step
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled:
        """Return the message for redelivery, after `delay_ms`, or after the topic's configured delay if that is 0.

        On a stream, the group reads on from it. `reason` is for people: a dead letter has the last one.

        Example:
            message.nack(delay_ms=500, reason="the database is away")
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.NACK, delay_ms, reason)

    def reject(self, reason: str = "") -> Settled:
        """Reject the message: it goes to the dead-letter topic, with the reason, of which 255 bytes are kept.

        Example:
            message.reject("the currency is unknown")
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.REJECT, 0, reason)

    def extend(self, lease_ms: int) -> Settled:
        """Extend the lease to `lease_ms` from now.

        Example:
            message.extend(lease_ms=60_000).wait()
        """
        return self.batch._settle(self.index, self.index + 1, Verdict.EXTEND, lease_ms)

    def process(self, on_error: OnError = "nack", delay_ms: int = 0) -> Processing[Message]:
        """Settle when a `with` block is left: ack, or nack or reject if the block raises.

        The error's type and first line are the reason. An interrupt (KeyboardInterrupt) settles nothing. The block's
        error is raised on, or else a refusal of the ack, but not that a lost connection made it void.

        Example:
            with message.process(on_error="reject"):
                print(message.value)
        """
        return Processing(self, on_error, delay_ms)


class FetchedBatches(NamedTuple):
    """Batches from the requested offset on, and the partition's bounds.

    Example:
        fetched = client.fetch("prices", 0, 0)
    """

    batches: list[Batch]
    start_offset: int
    """First offset that can be read."""
    high_watermark: int
    """Offset behind the last one that can be read."""
    next_offset: int
    """Offset at which to go on: no record that was asked for lies between the last batch and there."""
    leader_epoch: int
    """Leader epoch in which the broker has read them: give it to the next `fetch`."""


class Settleable(Protocol):
    """A message or a batch that can be settled."""

    def ack(self) -> Settled: ...
    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled: ...
    def reject(self, reason: str = "") -> Settled: ...


T = TypeVar("T", bound=Settleable)


class Processing(Generic[T]):
    """Context manager that `Message.process` and `Batch.process` return."""

    def __init__(self, work: T, on_error: OnError, delay_ms: int) -> None:
        check_on_error(on_error)
        checked_number(delay_ms, "delay_ms", U32_MAX)
        self._work = work
        self._on_error = on_error
        self._delay_ms = delay_ms

    def __enter__(self) -> T:
        return self._work

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Settle as `Message.process` says."""
        if exc is None:
            settled = self._work.ack()
            try:
                settled.wait()
            except LinnError:
                if not is_void(settled.carried_out):
                    raise
        elif isinstance(exc, Exception):
            with contextlib.suppress(LinnError):  # The block's own error is raised.
                reason, rejects = reason_of(exc), self._on_error == "reject"
                (self._work.reject(reason) if rejects else self._work.nack(self._delay_ms, reason)).wait()
