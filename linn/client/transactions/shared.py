"""SharedTransactions: transactions that several processes write and one process commits, for distributed jobs.

Laws: every process with the name and the run's number takes part; another run takes the name over, and fences the
earlier one. Only the producers that the commit names count, so that failed and repeated attempts leave nothing behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from linn.client.connection.connector import Connector
from linn.client.produce.producer import Producer
from linn.client.transactions.owner import until_not_busy
from linn.core.errors.tree import ProtocolError, TransactionError
from linn.wire.messages import AddBranch, EndTransaction, OpenedTransactions, OpenTransactions


class TransactionTicket(NamedTuple):
    """A transaction, for its writers: plain numbers, which can be sent to another process of the same user.

    It is a secret: a process that has it can write in the transaction, and end it.

    Example:
        ticket = await client.shared_transactions("job-7", run=0x5EED).join()
        print(ticket.producer_id, ticket.epoch, ticket.number)
    """

    producer_id: int
    epoch: int
    number: int
    producer_key: int
    """Proves that the client may use the producer id, which others see."""


class SharedTransactions:
    """Transactions of one name, made by `Client.shared_transactions`. They follow one another.

    Example:
        shared = client.shared_transactions("job-7", run=0x5EED)
        ticket = await shared.join()  # in each process that writes
        async with shared.producer(ticket, "bills") as producer:
            await producer.publish(b"42 EUR")
        await shared.commit(ticket, [producer.id], sequence=1)  # in one of them
    """

    def __init__(
        self,
        connector: Connector,
        name: str,
        run: int,
        timeout_s: float,
        make_producer: Callable[[str, bool], Producer],
    ) -> None:
        self.name = name
        self._connector = connector
        self._run = run
        self._timeout_ms = round(1000 * timeout_s)
        self._make_producer = make_producer

    async def join(self) -> TransactionTicket:
        """Return the present transaction, the same one in all processes of a run.

        Raises TransactionFenced: a later run has taken over the name; TransactionBusy: the previous one is being ended;
        LimitExceeded, ConnectionLost, RequestTimeout. Cancellation: the name may be taken over.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = await shared.join()
        """
        message = OpenTransactions(self.name, self._timeout_ms, opening=self._run)
        opened = await until_not_busy(self._connector, message)
        if not isinstance(opened, OpenedTransactions):
            raise ProtocolError(f"the broker answered open transactions with {type(opened).__name__}")
        return TransactionTicket(opened.producer_id, opened.epoch, opened.number, opened.producer_key)

    @asynccontextmanager
    async def producer(
        self, ticket: TransactionTicket, topic: str | None = None, *, exchange: str | None = None
    ) -> AsyncIterator[Producer]:
        """Open a producer whose messages belong to a transaction if its commit names the producer's `id`.

        Leave the block before the commit. Raises TransactionError, LimitExceeded, ConnectionLost, RequestTimeout, and
        as closing a producer does.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = await shared.join()
            async with shared.producer(ticket, "bills") as producer:
                await producer.publish(b"42 EUR")
            await shared.commit(ticket, [producer.id], sequence=1)
        """
        producer = await self._opened_producer(ticket, topic, exchange)
        try:
            yield producer
            await producer.aclose()
        finally:
            producer._end()

    async def _opened_producer(self, ticket: TransactionTicket, topic: str | None, exchange: str | None) -> Producer:
        if (topic is None) == (exchange is None):
            raise TransactionError("a transaction publishes to a topic or to an exchange")
        producer = self._make_producer(topic if topic is not None else exchange or "", exchange is not None)
        producer._use = ticket.producer_id, ticket.number
        await producer.__aenter__()
        try:
            message = AddBranch(ticket.producer_id, ticket.epoch, producer.id, ticket.producer_key)
            await self._connector.request(message, repeat=True)
        except BaseException:
            producer._end()
            raise
        return producer

    async def commit(
        self, ticket: TransactionTicket, producers: Sequence[int], *, sequence: int = 0, identity: str = ""
    ) -> None:
        """Commit the output of these producers, and abort the output of others. Can be repeated.

        `sequence`: the job's own count of its commits, from 1 on; 0: none. If the last sequence is committed again, in
        any transaction, that transaction is aborted. `identity` identifies the content of the commit, such as a digest
        of the job's input: at most 200 characters.

        Raises SequenceTaken: the last commit of this sequence had another identity, or was of a later sequence, and
        this transaction is aborted; TransactionAborted, TransactionFenced, TransactionError; ConnectionLost,
        RequestTimeout: the decision is not known; repeat the commit with the same sequence and identity. Cancellation:
        the same.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = await shared.join()
            async with shared.producer(ticket, "bills") as producer:
                await producer.publish(b"42 EUR")
            await shared.commit(ticket, [producer.id], sequence=1)
        """
        producer_id, epoch, number, key = ticket
        message = EndTransaction(producer_id, epoch, number, True, list(producers), sequence, identity, key)
        await until_not_busy(self._connector, message)

    async def abort(self, ticket: TransactionTicket) -> None:
        """Abort a transaction. Raises TransactionError: it was committed, or has ended; and as `commit`.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = await shared.join()
            await shared.abort(ticket)
        """
        producer_id, epoch, number, key = ticket
        await until_not_busy(self._connector, EndTransaction(producer_id, epoch, number, False, producer_key=key))
