"""SharedTransactions of the blocking client."""

from __future__ import annotations

from collections.abc import Sequence

from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.producer import Producer
from linn.client.transactions import shared as asynchronous
from linn.client.transactions.shared import TransactionTicket


class SharedTransactions:
    """The transactions of one name, made by `Client.shared_transactions`, which several processes write.

    Example:
        shared = client.shared_transactions("job-7", run=0x5EED)
        ticket = shared.join()  # in each process that writes
        with shared.producer(ticket, "bills") as producer:
            producer.publish(b"42 EUR")
        shared.commit(ticket, [producer.id], sequence=1)  # in one of them
    """

    def __init__(self, client: object, thread: LoopThread, made: asynchronous.SharedTransactions) -> None:
        self._client = client
        """The client, which lives for as long as this object."""
        self._thread = thread
        self._made = made

    @property
    def name(self) -> str:
        """Their name."""
        return self._made.name

    def join(self) -> TransactionTicket:
        """Return the present transaction; raises as that of `linn.client`.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = shared.join()
        """
        return self._thread.call(self._made.join)

    def producer(self, ticket: TransactionTicket, topic: str | None = None, *, exchange: str | None = None) -> Producer:
        """Return an open producer that writes in a transaction; raises as that of `linn.client`.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = shared.join()
            with shared.producer(ticket, "bills") as producer:
                producer.publish(b"42 EUR")
            shared.commit(ticket, [producer.id], sequence=1)
        """
        made = self._thread.call(self._made._opened_producer, ticket, topic, exchange)
        return Producer(lambda producer: None, self._thread, made, made._buffer_bytes_max)

    def commit(
        self, ticket: TransactionTicket, producers: Sequence[int], *, sequence: int = 0, identity: str = ""
    ) -> None:
        """Commit what these producers have written; raises as that of `linn.client`.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = shared.join()
            with shared.producer(ticket, "bills") as producer:
                producer.publish(b"42 EUR")
            shared.commit(ticket, [producer.id], sequence=1)
        """
        self._thread.call(self._made.commit, ticket, producers, sequence=sequence, identity=identity)

    def abort(self, ticket: TransactionTicket) -> None:
        """Abort a transaction; raises as that of `linn.client`.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = shared.join()
            shared.abort(ticket)
        """
        self._thread.call(self._made.abort, ticket)
