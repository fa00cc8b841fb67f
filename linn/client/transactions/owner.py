"""TransactionOwner: a transactional name of this client, and the producers that write in its transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel

from linn.client.connection.connector import Connector
from linn.client.produce.producer import Producer
from linn.core.errors.tree import (
    LinnError,
    ProtocolError,
    TransactionAborted,
    TransactionBusy,
    TransactionError,
    TransactionFenced,
    TransactionUnknown,
)
from linn.wire.messages import AddBranch, EndTransaction, OpenedTransactions, OpenTransactions

Target = tuple[str, bool]
"""Name of a topic or an exchange, and whether it is an exchange."""


async def until_not_busy(connector: Connector, message: OpenTransactions | EndTransaction) -> object:
    """Send a request, again while the end of another transaction blocks it.

    Raises TransactionError, TransactionBusy after all attempts, ConnectionLost, RequestTimeout, LimitExceeded.
    """
    attempts = 0
    while True:
        try:
            return (await connector.request(message, repeat=True)).message
        except TransactionBusy:
            if connector.options._is_used_up(attempts + 1):
                raise
            await connector.env.clock.sleep(connector.backoff_s(attempts))
            attempts += 1


class TransactionOwner:
    """Owner of one transactional name. Its transactions follow one another; the first one opens the name."""

    def __init__(
        self, connector: Connector, name: str, timeout_s: float, make_producer: Callable[[str, bool], Producer]
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.producer_id = 0
        self.producer_key = 0
        """Secret that proves to the broker that the name's producer id is this client's."""
        self.epoch = 0
        self.number = 0
        """Number of the open transaction, or of the next one."""
        self.is_busy = False
        """Whether a transaction is open."""
        self.connector = connector
        self._make_producer = make_producer
        self._is_open = False
        self._fenced: LinnError | None = None
        self._producers: dict[Target, Producer] = {}
        self._making = anyio.Lock(fast_acquire=True)
        self._branches: set[int] = set()
        """Ids of the producers that the broker has admitted."""

    async def begin(self) -> None:
        """Begin the next transaction; after one that failed, open the name again first.

        Raises TransactionError if one is open; TransactionFenced: another client has the name.
        """
        if self.is_busy:
            raise TransactionError(f'a transaction of "{self.name}" is open: end it before the next')
        if self._fenced is not None:
            raise self._fenced
        self.is_busy = True
        try:
            await self.take_over()
        except BaseException:
            self.is_busy = False
            raise

    async def take_over(self) -> None:
        """Open the name, if it is not open. This aborts an open transaction of an earlier owner.

        Raises TransactionFenced: another client has the name.
        """
        if self._fenced is not None:
            raise self._fenced
        if self._is_open:
            return
        opening = int.from_bytes(self.connector.env.rng.bytes(8), "big") or 1
        timeout_ms, key = round(1000 * self.timeout_s), self.producer_key
        message = OpenTransactions(self.name, timeout_ms, self.producer_id, self.epoch, opening, key)
        opened = await self._until_not_busy(message)
        if not isinstance(opened, OpenedTransactions):
            raise ProtocolError(f"the broker answered open transactions with {type(opened).__name__}")
        self.producer_id, self.epoch, self.number = opened.producer_id, opened.epoch, opened.number
        self.producer_key = opened.producer_key
        self._is_open = True
        self._branches.clear()

    async def _until_not_busy(self, message: OpenTransactions | EndTransaction) -> object:
        try:
            return await until_not_busy(self.connector, message)
        except TransactionFenced as error:
            self._fenced = error
            raise

    async def producer(self, target: str, to_exchange: bool) -> Producer:
        """Return the producer for a topic or an exchange, ready to write in the present transaction."""
        key = target, to_exchange
        async with self._making:  # Tasks that publish at the same time share a producer: the commit names every branch.
            producer = self._producers.get(key)
            if producer is None:
                producer = self._make_producer(target, to_exchange)
                producer._outlives_blocks = True
                producer._use = self.producer_id, self.number
                await producer.__aenter__()
                self._producers[key] = producer
            branch = producer._begin((self.producer_id, self.number))
            if branch not in self._branches:
                await self._add_branch(branch)
                self._branches.add(branch)
        return producer

    async def _add_branch(self, branch: int) -> None:
        message = AddBranch(self.producer_id, self.epoch, branch, self.producer_key)
        await self.connector.request(message, repeat=True)

    async def flush(self, targets: Sequence[Target]) -> list[int]:
        """Wait until all published messages are confirmed; return the ids of the producers.

        Raises the first failure.
        """
        branches = []
        await anyio.lowlevel.checkpoint_if_cancelled()  # Before the end is requested, it can still be an abort.
        for target in targets:
            producer = self._producers[target]
            if not producer._flush_nowait():
                await producer.flush()
            branches.append(producer._begin((self.producer_id, self.number)))
        return branches

    async def end(self, branches: Sequence[int], *, is_commit: bool) -> None:
        """End the transaction, and wait for the decision; after a lost connection, ask for it again.

        Raises TransactionAborted, GroupFenced, ...: it is aborted; ConnectionLost, RequestTimeout: the decision is not
        known; TransactionFenced: likewise, if an answer was lost and the new owner has committed since.
        """
        numbers, key = (self.producer_id, self.epoch, self.number), self.producer_key
        message = EndTransaction(*numbers, is_commit, list(branches), producer_key=key)
        try:
            await self._until_not_busy(message)
        except BaseException:
            self._is_open = False  # With any outcome, the name is opened again before the next transaction.
            raise
        finally:
            self.number += 1
            self.is_busy = False

    async def reason(self, error: TransactionUnknown) -> LinnError:
        """Return why the broker does not know the present transaction: TransactionFenced, or TransactionAborted.

        Returns `error` itself if the broker knows the transaction after all, or did not answer.
        """
        branch = next(iter(self._branches), self.producer_id)
        try:
            await self._add_branch(branch)
        except TransactionFenced as fenced:
            self._fenced = fenced
            return fenced
        except TransactionUnknown as unknown:
            return TransactionAborted(unknown.text)
        except LinnError:
            pass
        return error

    def give_up(self) -> None:
        """Leave a transaction to the next opening of the name, or to its timeout, unless its end was requested."""
        if self.is_busy:
            self._is_open = self.is_busy = False

    async def aclose(self) -> None:
        """Close the producers."""
        producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer._end()
