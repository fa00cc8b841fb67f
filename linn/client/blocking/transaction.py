"""Transaction of the blocking client: the async one, whose work any number of threads may do."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.message import Batch, Message
from linn.client.blocking.producer import Producer
from linn.client.consume import message as asynchronous_message
from linn.client.produce.receipt import BulkReceipt, Receipt
from linn.client.transactions import transaction as asynchronous
from linn.core.errors.tree import MessageInvalid


class Transaction:
    """One transaction, made by `Client.transaction`: it is committed when the block ends, and aborted if it raises.

    Any number of threads may work in it; one enters and leaves it.

    Example:
        with client.transaction("billing-1") as tx:
            tx.publish("bills", b"42 EUR")
            tx.publish("audit", b"bill written")
    """

    def __init__(self, client: object, thread: LoopThread, made: asynchronous.Transaction) -> None:
        self._client = client
        """The client, which lives for as long as this object."""
        self._thread = thread
        self._made = made

    @property
    def name(self) -> str:
        """Its name, which one client has at a time."""
        return self._made.name

    # --- life ---

    def __enter__(self) -> Self:
        """Begin. Raises TransactionFenced, TransactionError, ConnectionLost, RequestTimeout, LimitExceeded."""
        self._thread.call(self._made.__aenter__)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or abort if the block raised; raises as that of `linn.client.Transaction`.

        If the wait for a commit is interrupted (KeyboardInterrupt), it may or may not be committed.
        """
        self._thread.call(self._made.__aexit__, exc_type, exc, traceback)

    def abort(self) -> None:
        """Abort: nothing of it takes effect, and what was acked is delivered again.

        Example:
            with client.transaction("billing-1") as tx:
                tx.publish("bills", b"42 EUR")
                tx.abort()
        """
        self._thread.call(self._made.abort)

    # --- publishing ---

    def producer(self, topic: str | None = None, *, exchange: str | None = None) -> Producer:
        """Return a producer whose messages belong to this transaction; it must not be used after it.

        Raises TransactionError, TopicUnknown, LimitExceeded, ConnectionLost, RequestTimeout.

        Example:
            with client.transaction("billing-1") as tx:
                bills = tx.producer("bills")
                for number in range(100):
                    bills.publish_nowait(b"bill %d" % number)
        """
        made = self._thread.call(self._made.producer, topic, exchange=exchange)
        return Producer(lambda producer: None, self._thread, made, made._buffer_bytes_max)

    def publish(
        self,
        topic: str | None,
        value: bytes | None,
        *,
        exchange: str | None = None,
        timeout_s: float | None = None,
        **properties: Any,
    ) -> Receipt:
        """Publish a message with this transaction, and wait until it is stored; `properties` as `Producer.publish`.

        Example:
            with client.transaction("billing-1") as tx:
                receipt = tx.publish("bills", b"42 EUR", key=b"customer 7")
        """
        work = self._made.publish
        return self._thread.call_within(timeout_s, "publish", work, topic, value, exchange=exchange, **properties)

    def publish_many(
        self,
        topic: str | None,
        values: Sequence[bytes | None],
        *,
        exchange: str | None = None,
        timeout_s: float | None = None,
        **properties: Any,
    ) -> BulkReceipt:
        """Publish many messages with this transaction, the fastest way; `properties` as `Producer.publish_many`.

        Example:
            with client.transaction("billing-1") as tx:
                tx.publish_many("bills", [b"42 EUR", b"43 EUR"])
        """
        work = self._made.publish_many
        return self._thread.call_within(timeout_s, "publish_many", work, topic, values, exchange=exchange, **properties)

    # --- settling ---

    def ack(self, received: Message | Batch) -> None:
        """Ack what a consumer of a queue, or of a shared subscription, has received, if this is committed.

        Raises SubscriptionWrongKind, TransactionError.

        Example:
            message = next(consumer)
            with client.transaction("billing-1") as tx:
                tx.publish("bills", message.value)
                tx.ack(message)
        """
        self._made.ack(origin_of(received))

    def commit(self, received: Message | Batch) -> None:
        """Commit the offset behind what a member of a group has received, if this is committed.

        Raises SubscriptionWrongKind, TransactionError.

        Example:
            with client.consumer("prices", group="billing") as member:
                batch = member.next_batch()
                with client.transaction("billing-1") as tx:
                    tx.publish_many("bills", batch.values)
                    tx.commit(batch)
        """
        self._made.commit(origin_of(received))


def origin_of(received: Message | Batch) -> asynchronous_message.Message | asynchronous_message.Batch:
    """Return the loop's message or batch. Raises MessageInvalid: it is neither."""
    if isinstance(received, Batch):
        return received._origin
    if isinstance(received, Message):
        return asynchronous_message.Message(received.batch._origin, received.index)
    raise MessageInvalid("a transaction settles what a consumer of the same client has received: a message or a batch")
