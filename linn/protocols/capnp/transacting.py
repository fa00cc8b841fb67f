"""Transactions over the native protocol: their names, branches, settlements and ends."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from linn.api import IDENTITY_CHARACTERS_MAX, LimitExceeded, RequestedEnd
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


Named = TypeVar("Named", m.OpenTransactions, m.AddBranch, m.SettleInTransaction, m.EndTransaction)


class Transacting:
    """The transactions of a connection. A client may continue them over another connection.

    In a cluster, requests go on to the broker that leads the log of transactions, with the key of the owner's id.
    """

    def __init__(self, responder: Responder, subscribing: Subscribing) -> None:
        self._responder = responder
        self._subscribing = subscribing
        self._names: set[str] = set()
        """Names opened over this connection."""

    def _claim(self, message: m.OpenTransactions | m.AddBranch | m.SettleInTransaction | m.EndTransaction) -> None:
        """Take the key that a request shows of its owner's id. Raises ProducerForeign, LimitExceeded."""
        if message.producer_key:
            self._responder.session.claim_producer_id(message.producer_id, message.producer_key)

    def _keyed(self, message: Named) -> Named:
        """A request with the key of its owner's id, for another broker. Raises ProducerForeign."""
        if not message.producer_id:
            return message
        return replace(message, producer_key=self._responder.session.producer_key(message.producer_id))

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

            async def here() -> m.OpenedTransactions:
                timeout_s = message.timeout_ms / 1000
                opened = await session.transactions.open(message.name, timeout_s, owner, message.opening)
                return m.OpenedTransactions(*opened, session.producer_key(opened[0]))

            answer = await session.transactions.at_coordinator(here, self._keyed(message))
            session.claim_producer_id(answer.producer_id, answer.producer_key)
            self._names.add(message.name)
            responder.reply(event.correlation, answer)

        responder.in_task(event, work)

    def add_branch(self, event: Event) -> None:
        """Let a producer write in a client's transactions; answered once that is durable.

        Raises ProducerForeign, TransactionError, LimitExceeded, StorageError.
        """
        message = event.message
        assert isinstance(message, m.AddBranch)
        self._claim(message)
        numbers, session = (message.producer_id, message.epoch, message.branch), self._responder.session
        if not session.transactions.is_clustered:
            self._responder.when_passed(session.transactions.add_branch(*numbers), event.correlation, m.Done())
            return
        session.transactions.check_branch(message.branch)

        async def work() -> None:
            here = partial(session.transactions.announce, *numbers)
            await session.transactions.at_coordinator(here, self._keyed(message))
            self._responder.reply(event.correlation, m.Done())

        self._responder.in_task(event, work)

    def settle(self, event: Event) -> None:
        """Ack records, or commit offsets, when a transaction is committed; answered once it is sure of them.

        Raises SubscriptionUnknown, ProducerForeign, TransactionError, LimitExceeded, DeliveryNotCurrent, GroupFenced,
        ...
        """
        message = event.message
        assert isinstance(message, m.SettleInTransaction)
        if len(message.entries) > ENTRIES_MAX:
            text = f"{len(message.entries)} entries to settle in a transaction, more than {ENTRIES_MAX}"
            raise LimitExceeded(text)
        self._claim(message)
        owner, session = (message.producer_id, message.epoch, message.number), self._responder.session
        if self._subscribing.is_elsewhere(message.subscription):
            self._subscribing.pass_on(event._replace(message=self._keyed(message)), message.subscription)
            return
        consumer = self._subscribing.consumer(message.subscription)
        settlements = [self._subscribing.settlement(entry) for entry in message.entries]
        if not session.transactions.is_clustered:
            awaits = session.transactions.settle(owner, consumer, settlements)
            self._responder.when_passed(awaits, event.correlation, m.Done())
            return

        async def work() -> None:
            for mark, end in await session.transactions.settle_over_brokers(owner, consumer, settlements):
                await mark.wait(end)
            self._responder.reply(event.correlation, m.Done())

        self._responder.in_task(event, work)

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
        owner, session = (message.producer_id, message.epoch, message.number), responder.session
        how = RequestedEnd(message.is_commit, message.branches, message.sequence, message.identity)
        if session.transactions.is_clustered:

            async def pass_on() -> None:
                here = partial(session.transactions.end_over_brokers, owner, how)
                await session.transactions.at_coordinator(here, self._keyed(message))
                responder.reply(event.correlation, m.Done())

            responder.in_task(event, pass_on)
            return
        ending = session.transactions.end(owner, how)
        if ending is None:
            responder.reply(event.correlation, m.Done())
            return

        async def work() -> None:
            await ending.wait()
            responder.reply(event.correlation, m.Done())

        responder.in_task(event, work)
