"""Requests of another broker about transactions, in a lane that it has opened for itself."""

from __future__ import annotations

from linn.cluster.transacting import key_of
from linn.core.errors.tree import RequestUnknown
from linn.core.gateway.gateway import Gateway
from linn.core.transactions.cluster_coordinator import TopicMarks
from linn.core.transactions.producer import Owner
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event


class ServedTransactions:
    """The requests in one lane."""

    def __init__(self, responder: Responder, gateway: Gateway) -> None:
        self._responder = responder
        self._gateway = gateway

    def begin(self, event: Event) -> None:
        """Carry out a request; answered when it is committed. Raises LinnErrors for the answer."""
        message, transactions = event.message, self._gateway.transactions
        if transactions is None:
            raise RequestUnknown("this broker is in no cluster")

        async def work() -> None:
            if isinstance(message, m.JoinTransaction):
                owner = None
                if message.owner_epoch >= 0:
                    owner = Owner(message.branch, message.owner_epoch, message.user)
                await transactions.coordinator.join(message.branch, message.number, key_of(message), owner)
            else:
                assert isinstance(message, m.MarkTransaction), "no other message comes here"
                numbers = message.producer_id, message.number
                await transactions.participant.mark(
                    TopicMarks(key_of(message), *numbers, message.commits, message.aborts)
                )
            self._responder.reply(event.correlation, m.Done())

        self._responder.in_task(event, work)
