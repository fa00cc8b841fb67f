"""An adapter from a connection of linn's to the stream that hypercorn's `TCPServer` works on.

Laws: hypercorn gets no socket, so all its input and output goes through Env. A client that does not read is dropped
after `SEND_S_MAX`, and at once when the connection is cancelled, from which hypercorn shields its sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from linn.core.connections.listener_traffic import Traffic
from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import ConnectionLost

RECEIVE_BYTES = 16 << 10
"""Size of one receive: a request of a monitoring system is far smaller."""
SEND_S_MAX = 10.0
"""Time that a client has to take one piece of an answer; a scraper has given up by then."""
_LEFT_UNREAD_TRIES = 8


class NoSocket:
    """A stand-in for the socket that hypercorn asks for addresses, which it then shows to nobody."""

    family = None

    def getpeername(self) -> None:
        """Return None: the address is unknown."""

    def getsockname(self) -> None:
        """Return None: the address is unknown."""


class HypercornStream:
    """`receive_some`, `send_all`, `aclose` and `socket`, as trio's streams have them. No TLS, and no half-close."""

    socket = NoSocket()

    def __init__(self, stream: AcceptedStream, on_end: Callable[[], Awaitable[None]]) -> None:
        """`on_end` is called when the client has finished sending."""
        self._stream = stream
        self._on_end = on_end
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._sending: trio.CancelScope | None = None
        self._received_bytes = 0
        self._sent_bytes = 0
        self._aborted = False

    def traffic(self) -> Traffic:
        """The traffic of the connection, for the metrics."""
        return Traffic(self._received_bytes, self._sent_bytes)

    async def receive_some(self, bytes_max: int) -> bytes:
        """Receive some bytes; none at the end. Raises trio.BrokenResourceError."""
        try:
            count = await self._stream.receive_into(self._buffer[:bytes_max])
        except ConnectionLost as error:
            await self._on_end()
            raise trio.BrokenResourceError from error
        if count == 0:
            await self._on_end()
        self._received_bytes += count
        return bytes(self._buffer[:count])

    async def send_all(self, data: bytes) -> None:
        """Send all data. Raises trio.BrokenResourceError if the client is gone or too slow, or the broker ends."""
        try:
            with trio.move_on_after(SEND_S_MAX) as self._sending:
                if self._aborted:
                    self._sending.cancel()
                await self._stream.send([data])
                self._sent_bytes += len(data)
        except ConnectionLost as error:
            raise trio.BrokenResourceError from error
        if self._sending.cancelled_caught:
            self.abort()
            await self.aclose()
            raise trio.BrokenResourceError("the client does not read")

    def abort(self) -> None:
        """Send nothing more, and drop the data being sent."""
        self._aborted = True
        if self._sending is not None:
            self._sending.cancel()

    async def aclose(self) -> None:
        """Close, after reading unread input: otherwise the close would lose the last output."""
        try:
            for _ in range(_LEFT_UNREAD_TRIES):
                if not self._stream.receive_nowait([self._buffer]):
                    break
        except ConnectionLost:
            pass
        await self._stream.aclose()
