"""SharedTransactions of the blocking client: what differs from the async ones."""

from __future__ import annotations

from linn.client.blocking.facade import Facade
from linn.client.blocking.generated.producer import Producer
from linn.client.transactions import shared as asynchronous
from linn.client.transactions.shared import TransactionTicket


class BaseSharedTransactions(Facade[asynchronous.SharedTransactions]):
    """Part of `SharedTransactions` that is written by hand."""

    @property
    def name(self) -> str:
        """Name of the transactions."""
        return self._made.name

    def _producer(self, ticket: TransactionTicket, topic: str | None, *, exchange: str | None) -> Producer:
        made = self._thread.call(self._made._opened_producer, ticket, topic, exchange)
        return Producer(lambda producer: None, self._thread, made)
