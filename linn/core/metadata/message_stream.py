"""MessageStream: one connection between a server of metadata and a client, as messages both ways."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import trio

from linn.core.env.env import Stream
from linn.core.errors.tree import ConnectionLost
from linn.core.metadata.served_messages import Frames, decoded

_READ_BYTES = 64 << 10
M = TypeVar("M")


class MessageStream:
    """Messages over a stream. One task at a time receives; any number may send."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._frames = Frames()
        self._piece = memoryview(bytearray(_READ_BYTES))
        self._sending = trio.Lock()
        self._is_closed = False
        """Closed on this side, or ended by the other."""

    async def receive(self, decoder: msgspec.json.Decoder[M], bytes_max: int) -> M:
        """Wait for the next message.

        Raises ConnectionLost; MetadataError: it is no message of the decoder's, or has more than `bytes_max` bytes.
        Cancellation: nothing is lost.
        """
        while (body := self._frames.next(bytes_max)) is None:
            self._take(await self._stream.receive_into(self._piece))
        return decoded(decoder, body)

    def is_open(self) -> bool:
        """Whether the other end may still be there, as far as is known without waiting. Not while a task receives."""
        if not self._is_closed:
            try:
                count = self._stream.receive_nowait([self._piece])
                if count is not None:
                    self._take(count)
            except ConnectionLost:
                self._is_closed = True
        return not self._is_closed

    def _take(self, count: int) -> None:
        """Raises ConnectionLost at the end of the stream."""
        if not count:
            raise ConnectionLost("the other end has closed the connection")
        self._frames.feed(self._piece[:count])

    async def send(self, frame: bytes) -> bool:
        """Send a frame whole, after the frames of other tasks; False: the connection has ended, and nothing was sent.

        Raises ConnectionLost: a part of it may have been sent. Cancellation: nothing of it was sent, or the stream is
        closed.
        """
        async with self._sending:
            try:
                sent = self._stream.send_nowait([frame])
            except ConnectionLost:
                await self.aclose()
                return False
            try:
                if sent < len(frame):
                    await self._stream.send([memoryview(frame)[sent:]])
            except BaseException:
                await self.aclose()  # Nothing may follow a part of a frame.
                raise
            return True

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        self._is_closed = True
        await self._stream.aclose()
