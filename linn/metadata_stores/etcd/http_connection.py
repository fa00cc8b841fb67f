"""HttpConnection: one connection to a member of etcd, with HTTP/1.1 by h11.

Laws: a head has at most HEAD_BYTES_MAX, and an answer as many bytes as the caller says; a connection that breaks a rule
is of no more use. Redirects are not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import h11
import trio

from linn.api import ConnectionLost, MetadataError, Stream

HEAD_BYTES_MAX = 16 << 10
HEADS_MAX = 8
"""Limit of the heads before and with an answer: "100 Continue" and the like."""
PIECE_BYTES = 64 << 10
"""Size of one receive."""
Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """A complete answer."""

    status: int
    body: bytes


class HttpConnection:
    """Requests and answers, one after the other. Owns its stream."""

    def __init__(self, stream: Stream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self.last_used_s = 0.0

    async def ask(self, path: str, body: bytes, headers: Headers, bytes_max: int) -> Answer:
        """Send a request and read its answer.

        Raises:
            ConnectionLost: before the whole answer came.
            MetadataError: the answer is not HTTP, or has more than `bytes_max` bytes.
        Cancellation, as any error: close the connection.
        """
        return Answer(await self.begin(path, body, headers), await self.read(bytes_max))

    async def read(self, bytes_max: int) -> bytes:
        """Read the rest of an answer. Raises as `ask`."""
        read = bytearray()
        while (piece := await self.receive()) is not None:
            read += piece
            if len(read) > bytes_max:
                raise MetadataError(f"{self._host} answered with more than {bytes_max:,} bytes")
        return bytes(read)

    async def begin(self, path: str, body: bytes, headers: Headers) -> int:
        """Send a request and read the head of its answer; returns the status. Raises as `ask`."""
        head = [("host", self._host), ("content-type", "application/json"), ("content-length", str(len(body)))]
        request = h11.Request(method="POST", target=path, headers=[*head, *headers])
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        await self._stream.send([self._http.send(event) or b"" for event in events])
        for _ in range(HEADS_MAX):
            if isinstance(event := await self._next(), h11.Response):
                return event.status_code
        raise MetadataError(f"{self._host} answers with one head after the other")

    async def receive(self) -> bytes | None:
        """Wait for the next piece of the answer; None at its end. Raises as `ask`. Cancellation: nothing is lost."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next(self) -> h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                count = await self._stream.receive_into(self._buffer)
                self._http.receive_data(self._buffer[:count].tobytes())
        except h11.RemoteProtocolError as error:
            if self._http.trailing_data[1]:
                raise ConnectionLost(f"{self._host} closed the connection before the end of its answer") from error
            raise MetadataError(f"{self._host} does not answer in HTTP: {error}") from error
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise ConnectionLost(f"{self._host} closed the connection before its answer")
        assert isinstance(event, h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage)
        return event

    def is_reusable(self) -> bool:
        """Make the connection ready for another request; False: it can't have one.

        It can't if the member has closed it, or has sent more than its answer.
        """
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.our_state is not h11.IDLE or self._http.trailing_data[0]:
            return False
        try:
            return self._stream.receive_nowait([self._buffer]) is None
        except ConnectionLost:
            return False

    async def aclose(self) -> None:
        """Close at once."""
        with trio.CancelScope(shield=True):
            await self._stream.aclose()
