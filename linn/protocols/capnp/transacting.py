"""Transactions over the native protocol: their names, branches, settlements and ends."""

from __future__ import annotations

from linn.api import IDENTITY_CHARACTERS_MAX, LimitExceeded
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscribing import Subscribing
from linn.wire import messages as m
from linn.wire.connection import Event

NAMES_MAX = 1_000
"""Limit of the names opened by one connection: a program that keeps using new names takes no others' share."""
SEQUENCE_MAX = (1 << 63) - 1
"""Highest sequence of a commit that fits the log."""
ENTRIES_MAX = 256
"""Limit of the entries settled together: they are carried out without a pause, in a few milliseconds."""


class Transacting:
    """The transactions of a connection. A client may continue them over another connection."""

    def __init__(self, responder: Responder, subscribing: Subscribing) -> None:
        self._responder = responder
        self._subscribing = subscribing
        self._names: set[str] = set()
        """Names opened over this connection."""

    def _claim(self, message: m.OpenTransactions | m.AddBranch | m.SettleInTransaction | m.EndTransaction) -> None:
        """Take the key that a request shows of its owner's id. Raises ProducerForeign, LimitExceeded."""
        if message.producer_key:
            self._responder.session.claim_producer_id(message.producer_id, message.producer_key)

    def open(self, event: Event) -> None:
        """Take over a name; answered once it is durable. Raises LimitExceeded."""
        message = event.message
        assert isinstance(message, m.OpenTransactions)
        responder = self._responder
        if message.name not in self._names and len(self._names) >= NAMES_MAX:
            text = (
                f"{NAMES_MAX:,} names of transactions were opened over this connection: give each worker one, for good"
            )
            raise LimitExceeded(text)

        async def work() -> None:
            session, owner = responder.session, None
            if message.producer_id:
                self._claim(message)
                owner = message.producer_id, message.epoch
            opened = await session.open_transactions(message.name, message.timeout_ms / 1000, owner, message.opening)
            self._names.add(message.name)
            key = session.producer_key(opened[0])
            responder.reply(event.correlation, m.OpenedTransactions(*opened, key))

        responder.in_task(event, work)

    def add_branch(self, event: Event) -> None:
        """Let a producer write in a client's transactions. Raises ProducerForeign, TransactionError, LimitExceeded."""
        message = event.message
        assert isinstance(message, m.AddBranch)
        self._claim(message)
        numbers = message.producer_id, message.epoch, message.branch
        self._responder.session.add_branch(*numbers)
        self._responder.reply(event.correlation, m.Done())

    def settle(self, event: Event) -> None:
        """Ack records, or commit offsets, when a transaction is committed.

        Raises SubscriptionUnknown, ProducerForeign, TransactionError, LimitExceeded, DeliveryNotCurrent, GroupFenced,
        ...
        """
        message = event.message
        assert isinstance(message, m.SettleInTransaction)
        if len(message.entries) > ENTRIES_MAX:
            text = f"{len(message.entries)} entries to settle in a transaction, more than {ENTRIES_MAX}"
            raise LimitExceeded(text)
        self._claim(message)
        owner = message.producer_id, message.epoch, message.number
        consumer = self._subscribing.consumer(message.subscription)
        settlements = [self._subscribing.settlement(entry) for entry in message.entries]
        self._responder.session.settle_in_transaction(owner, consumer, settlements)
        self._responder.reply(event.correlation, m.Done())

    def end(self, event: Event) -> None:
        """End a transaction; answered once its decision is durable, and markers are written where the disk has space.

        Raises ProducerForeign, TransactionError, LimitExceeded, StorageError.
        """
        message = event.message
        assert isinstance(message, m.EndTransaction)
        responder = self._responder
        if message.sequence > SEQUENCE_MAX:
            raise LimitExceeded(f"the sequence of a commit is {message.sequence}, more than {SEQUENCE_MAX}")
        if len(message.identity) > IDENTITY_CHARACTERS_MAX:
            raise LimitExceeded(f"the identity of a commit is longer than {IDENTITY_CHARACTERS_MAX} characters")
        self._claim(message)
        owner = message.producer_id, message.epoch, message.number
        ending = responder.session.end_transaction(
            owner,
            is_commit=message.is_commit,
            branches=message.branches,
            sequence=message.sequence,
            identity=message.identity,
        )
        if ending is None:
            responder.reply(event.correlation, m.Done())
            return

        async def work() -> None:
            await ending.wait()
            responder.reply(event.correlation, m.Done())

        responder.in_task(event, work)
