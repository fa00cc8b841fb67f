"""Transaction: publishes, acks and offsets that take effect together, or not at all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import anyio

from linn.client.consume.message import Batch, Message
from linn.client.consume.settling import Delivery
from linn.client.consume.subscription import Subscription
from linn.client.produce.producer import Producer
from linn.client.produce.receipt import BulkReceipt, Receipt
from linn.client.transactions.owner import Target, TransactionOwner
from linn.core.errors.tree import (
    DeliveryNotCurrent,
    GroupFenced,
    LinnError,
    MessageInvalid,
    SubscriptionWrongKind,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
)
from linn.wire.messages import ConsumerKind, SettleInTransaction, Settlement, Verdict

SETTLES_RECEIVED = "a transaction settles what a consumer of the same client has received: a message or a batch"
ABORT_S = 5.0
"""Time limit for the abort of a cancelled block; the broker aborts after its timeout in any case."""
ENTRIES_MAX = 256
"""Maximum number of entries in one request to settle in a transaction, as the broker limits it."""

logger = logging.getLogger("linn.client")


class Transaction:
    """One transaction, made by `Client.transaction`: it is committed when the block ends, and aborted if it raises.

    Example:
        async with client.transaction("billing-1") as tx:
            await tx.publish("bills", b"42 EUR")
            await tx.publish("audit", b"bill written")
    """

    def __init__(self, owner: TransactionOwner) -> None:
        self._owner = owner
        self._targets: dict[Target, None] = {}
        self._settled: list[tuple[Subscription, Delivery, int, int]] = []
        self._is_open = False

    @property
    def name(self) -> str:
        """Transactional name, which one client owns at a time."""
        return self._owner.name

    # --- life ---

    async def __aenter__(self) -> Self:
        """Begin. Raises TransactionFenced, TransactionError, ConnectionLost, RequestTimeout, LimitExceeded."""
        await self._owner.begin()
        self._is_open = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or abort if the block raised.

        Raises as `_commit`; in place of the block's TransactionUnknown, the error that ended the transaction.
        """
        if not self._is_open:
            return
        if exc is None:
            await self._commit()
        elif isinstance(exc, Exception):
            reason = await self._owner.reason(exc) if isinstance(exc, TransactionUnknown) else exc
            with contextlib.suppress(LinnError):  # The block's own error is raised.
                await self.abort()
            if reason is not exc:
                raise reason from exc
        else:
            with anyio.CancelScope(shield=True), anyio.move_on_after(ABORT_S), contextlib.suppress(LinnError):
                await self.abort()

    async def _take_over(self) -> None:
        """Open the name before this transaction has anything to do. Raises TransactionFenced, LinnError."""
        await self._owner.take_over()

    async def _commit(self) -> None:
        """Wait until everything is stored, and commit.

        Raises:
            TransactionAborted: nothing has taken effect: it was open for too long, or the broker lost power.
            TransactionFenced: another client has taken over the name. Nothing has taken effect, unless the connection
                was lost during the commit: the broker keeps only the last commit of a name.
            LinnError: a publish was not confirmed, or a record no longer belonged to this consumer; it is aborted.
            ConnectionLost, RequestTimeout: the decision is not known.
        """
        try:
            branches = await self._owner.flush(list(self._targets))
            await self._settle()
        except BaseException as error:
            reason = await self._owner.reason(error) if isinstance(error, TransactionUnknown) else error
            with anyio.CancelScope(shield=True), anyio.move_on_after(ABORT_S), contextlib.suppress(LinnError):
                await self.abort()
            if reason is not error:
                raise reason from error
            raise
        self._is_open = False
        try:
            await self._owner.end(branches, is_commit=True)
        except TransactionUnknown as error:
            self._return_settled()
            raise TransactionAborted(error.text) from error
        except (TransactionAborted, GroupFenced):
            self._return_settled()
            raise
        except BaseException:
            self._leave_settled()
            raise

    async def abort(self) -> None:
        """Abort: nothing takes effect, and acked records are delivered again.

        Example:
            async with client.transaction("billing-1") as tx:
                await tx.publish("bills", b"42 EUR")
                await tx.abort()
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            for target in self._targets:
                with contextlib.suppress(LinnError):
                    await self._owner.flush([target])
            with contextlib.suppress(
                TransactionAborted, TransactionUnknown
            ):  # The transaction is aborted, as requested.
                await self._owner.end((), is_commit=False)
        finally:
            self._owner.give_up()
            self._return_settled()

    # --- publishing ---

    async def producer(self, topic: str | None = None, *, exchange: str | None = None) -> Producer:
        """Return a producer whose messages belong to this transaction; do not use it after the transaction.

        Raises TransactionError, TopicUnknown, LimitExceeded, ConnectionLost, RequestTimeout. If a publish with it
        raises TransactionUnknown, the block raises the reason: TransactionAborted or TransactionFenced.

        Example:
            async with client.transaction("billing-1") as tx:
                invoices = await tx.producer("bills")
                await invoices.publish_many([b"42 EUR", b"43 EUR"])
        """
        self._check_open()
        if (topic is None) == (exchange is None):
            raise TransactionError("a transaction publishes to a topic or to an exchange")
        target = (topic, False) if topic is not None else (exchange or "", True)
        try:
            producer = await self._owner.producer(*target)
        except TransactionUnknown as error:
            raise await self._owner.reason(error) from error
        self._targets[target] = None
        return producer

    async def publish(
        self, topic: str | None, value: bytes | None, *, exchange: str | None = None, **properties: Any
    ) -> Receipt:
        """Publish a message with this transaction, and wait until it is stored; `properties` as `Producer.publish`.

        Raises TransactionAborted, TransactionFenced: the transaction has ended; and as `Producer.publish`.

        Example:
            async with client.transaction("billing-1") as tx:
                receipt = await tx.publish("bills", b"42 EUR", key=b"customer 7")
        """
        producer = await self.producer(topic, exchange=exchange)
        try:
            return await producer.publish(value, **properties)
        except TransactionUnknown as error:
            raise await self._owner.reason(error) from error

    async def publish_many(
        self, topic: str | None, values: Sequence[bytes | None], *, exchange: str | None = None, **properties: Any
    ) -> BulkReceipt:
        """Publish many messages with this transaction, the fastest way; `properties` as `Producer.publish_many`.

        Raises as `publish`.

        Example:
            async with client.transaction("billing-1") as tx:
                await tx.publish_many("bills", [b"42 EUR", b"43 EUR"])
        """
        producer = await self.producer(topic, exchange=exchange)
        try:
            return await producer.publish_many(values, **properties)
        except TransactionUnknown as error:
            raise await self._owner.reason(error) from error

    # --- settling ---

    def ack(self, received: Message | Batch) -> None:
        """Ack a message or batch of a queue or shared subscription, with the commit of this transaction.

        Raises SubscriptionWrongKind, TransactionError; MessageInvalid: it is neither.

        Example:
            message = await anext(consumer)
            async with client.transaction("billing-1") as tx:
                await tx.publish("bills", message.value)
                tx.ack(message)
        """
        self._note(received, ConsumerKind.SHARED)

    def commit(self, received: Message | Batch) -> None:
        """Commit the offset after a message or batch of a group's member, with the commit of this transaction.

        Raises SubscriptionWrongKind, TransactionError; MessageInvalid: it is neither.

        Example:
            async with client.consumer("prices", group="billing") as member:
                batch = await member.next_batch()
                async with client.transaction("billing-1") as tx:
                    await tx.publish_many("bills", batch.values)
                    tx.commit(batch)
        """
        self._note(received, ConsumerKind.GROUP)

    def _note(self, received: Message | Batch, kind: ConsumerKind) -> None:
        self._check_open()
        self._add(received, kind)

    def _note_before(self, batches: Sequence[Batch], *, is_group: bool) -> None:
        """Settle batches with the transaction, before it begins; if it does not begin, `_give_back` returns them."""
        for batch in batches:
            self._add(batch, ConsumerKind.GROUP if is_group else ConsumerKind.SHARED)

    async def _give_back(self) -> None:
        """Return the records to be settled, unless the end of the transaction has done so."""
        self._return_settled()

    def _add(self, received: Message | Batch, kind: ConsumerKind) -> None:
        if not isinstance(received, Message | Batch):
            raise MessageInvalid(SETTLES_RECEIVED)
        batch = received if isinstance(received, Batch) else received.batch
        subscription, delivery = batch._subscription, batch._delivery
        if not isinstance(subscription, Subscription) or delivery is None or subscription.kind != kind:
            whom = "a queue's consumer" if kind == ConsumerKind.SHARED else "a member of a group"
            raise SubscriptionWrongKind(f"only what {whom} has received can be settled so in a transaction")
        if isinstance(received, Batch):
            first, end = batch._offset(batch._first), batch.end_offset
        else:
            first, end = batch._offset(received.index), batch._offset(received.index + 1)
        self._settled.append((subscription, delivery, first, end))

    async def _settle(self) -> None:
        """Tell the broker which records are settled with this transaction. Raises LinnError: it can't be committed."""
        owner = self._owner
        entries: dict[Subscription, list[Settlement]] = {}
        for subscription, delivery, first, end in self._settled:
            if not subscription.holds(delivery):
                raise DeliveryNotCurrent("records to settle in a transaction belong to others by now")
            mine = entries.setdefault(subscription, [])
            if mine and _continues(mine[-1], delivery, first):
                mine[-1].end = end
            else:
                mine.append(Settlement(delivery.partition, delivery.delivery_id, first, end, Verdict.ACK))
        for subscription, some in entries.items():
            for at in range(0, len(some), ENTRIES_MAX):
                numbers = owner.producer_id, owner.epoch, owner.number
                part = some[at : at + ENTRIES_MAX]
                message = SettleInTransaction(*numbers, subscription.id, part, owner.producer_key)
                await owner.connector.request(message, over=subscription.connection)
        for subscription, delivery, first, end in self._settled:
            subscription.settled_in_transaction(delivery, first, end)

    def _leave_settled(self) -> None:
        """Leave the records to be settled to the broker, because the decision is not known here."""
        settled, self._settled = self._settled, []
        for subscription in dict.fromkeys(subscription for subscription, _, _, _ in settled):
            subscription.settled_in_doubt()

    def _return_settled(self) -> None:
        """Return the records to be settled: they are not, and will not be, settled."""
        settled, self._settled = self._settled, []
        set_back: set[tuple[Subscription, int]] = set()
        for subscription, delivery, first, end in sorted(settled, key=lambda each: each[2]):
            place = subscription, delivery.partition
            if not subscription.holds(delivery) or place in set_back:
                continue
            if subscription.kind == ConsumerKind.GROUP:
                set_back.add(place)  # Once for each partition: again would repeat records.
            subscription.submit(delivery, first, end, Verdict.NACK).awaited = True

    def _check_open(self) -> None:
        if not self._is_open:
            raise TransactionError("the transaction has ended, or was not entered with `async with`")


def _continues(entry: Settlement, delivery: Delivery, first: int) -> bool:
    return (entry.partition, entry.delivery_id, entry.end) == (delivery.partition, delivery.delivery_id, first)
