"""Requester: publishes requests, and gives each the replies that come for it.

Laws: the inbox is that of the connection at hand, and lives as long as it: requests that wait when it is lost fail, and
are not asked again, because they may have been carried out. A reply for a request that no longer waits is dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from linn.client.arguments import checked_headers
from linn.client.connection.answer import again
from linn.client.connection.connection import INBOX, Connection
from linn.client.connection.connector import Connector
from linn.client.connection.replying import REPLY_TO, Reply, replies_in
from linn.client.produce.producer import Producer
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import ConnectionLost, LinnError, ProtocolError
from linn.wire.messages import Inbox, Message, OpenInbox
from linn.wire.messages import Reply as ReplyMessage

OWN_BYTES = 8
"""Random bytes by which requests are told apart: a worker can't reply to a request that it did not get."""
PRODUCERS_MAX = 32
"""Producers that are kept open for the next request to their topic or exchange; each uses one of the client's ids."""


class _Waiting:
    """A request, and the replies to it so far."""

    def __init__(self, replies_max: int) -> None:
        self.replies: list[Reply] = []
        self.error: LinnError | None = None
        self.scope = anyio.CancelScope()
        """The scope that publishes the request and waits."""
        self._replies_max = replies_max
        self.is_complete = anyio.Event()

    def take(self, batch: RecordBatch) -> None:
        """Take the replies of a batch."""
        try:
            self.replies += replies_in(batch)
        except LinnError as error:
            self.fail(error)
        if len(self.replies) >= self._replies_max:
            del self.replies[self._replies_max :]
            self.is_complete.set()

    def fail(self, error: LinnError) -> None:
        """End the request with an error."""
        self.error = error
        self.scope.cancel()


class _Open:
    """A producer that is kept open."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.uses = 0
        """Requests that publish with it now."""


class Requester:
    """The requests of one client."""

    def __init__(self, connector: Connector, make_producer: Callable[[str, bool], Producer]) -> None:
        """`make_producer` makes a producer for a topic, or for an exchange (True)."""
        self._connector = connector
        self._make_producer = make_producer
        self._opening, self._making = anyio.Lock(), anyio.Lock()
        self._opened: Connection | None = None
        """The connection whose inbox is open."""
        self._address = ""
        self._waiting: dict[str, _Waiting] = {}
        """By the address of each request."""
        self._producers: dict[tuple[str, bool], _Open] = {}
        """By topic or exchange, least recently used first."""

    async def replies(
        self,
        target: tuple[str, bool],
        value: bytes | None,
        replies_max: int,
        timeout_s: float,
        properties: dict[str, Any],
    ) -> list[Reply]:
        """Publish a request, and wait for so many replies, or for the timeout; returns the replies by then.

        Raises ConnectionLost: the connection of the inbox was lost; and as `Producer.publish`.
        Cancellation: the request may have been published.
        """
        headers = checked_headers(properties.pop("headers", None))
        waiting = _Waiting(replies_max)
        address = ""
        try:
            with waiting.scope:
                with anyio.move_on_after(timeout_s):
                    address = f"{await self._inbox()}.{self._connector.env.rng.bytes(OWN_BYTES).hex()}"
                    self._waiting[address] = waiting
                    async with self._producer(target) as producer:
                        headers = ((REPLY_TO, address.encode()), *headers)
                        await producer.publish(value, headers=headers, **{"mandatory": True} | properties)
                    await waiting.is_complete.wait()
        finally:
            self._waiting.pop(address, None)
        if waiting.error is not None:
            raise again(waiting.error)
        return waiting.replies

    async def _inbox(self) -> str:
        """Return the address of the inbox, which is opened with the first request of a connection."""
        connection = await self._connector.ready()
        async with self._opening:
            if self._opened is not connection:
                answer = (await self._connector.request(OpenInbox(), over=connection)).message
                if not isinstance(answer, Inbox):
                    raise ProtocolError(f"the broker answered open inbox with {type(answer).__name__}")
                if self._opened is None:
                    self._connector.listeners.append(self)
                self._opened, self._address = connection, answer.address
                connection.subscriptions[INBOX] = self
        if connection.error is not None:
            raise ConnectionLost(connection.error.text)
        return self._address

    @asynccontextmanager
    async def _producer(self, target: tuple[str, bool]) -> AsyncIterator[Producer]:
        async with self._making:
            found = self._producers.pop(target, None)
            if found is None:
                found = _Open(self._make_producer(*target))
                await found.producer.__aenter__()
                self._close_idle()
            self._producers[target] = found
        found.uses += 1
        try:
            yield found.producer
        finally:
            found.uses -= 1

    def _close_idle(self) -> None:
        """Make place for one more producer, if one of the others is idle."""
        idle = [target for target, each in self._producers.items() if not each.uses]
        if len(self._producers) >= PRODUCERS_MAX and idle:
            self._producers.pop(idle[0]).producer._end()

    # --- the connection ---

    def pushed(self, message: Message, batches: list[RecordBatch]) -> None:
        """Take a `Reply`."""
        waiting = self._waiting.get(message.to) if isinstance(message, ReplyMessage) else None
        if waiting is not None:
            for batch in batches:
                waiting.take(batch)

    def _connected(self, connection: Connection) -> None:
        """Do nothing: the inbox is opened with the next request."""

    def _disconnected(self) -> None:
        self._give_up(ConnectionLost("the connection was lost to which the reply would have come"))

    def _give_up(self, error: LinnError) -> None:
        for waiting in self._waiting.values():
            waiting.fail(error)
