"""The handshake: hello and welcome at the beginning of a connection, or its refusal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import ConnectionLost, LinnError, RequestTimeout
from linn.core.loop.fair_turns import TurnSlot
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, agree, frames_of
from linn.wire.failure import failed_by

DISCARD_BYTES = 64 << 10
REST_S = 1.0
"""Time during which input of a closed client is still read and discarded."""


class Handshake:
    """The broker's side of one handshake."""

    def __init__(self, stream: AcceptedStream, connection: Connection, turn: TurnSlot) -> None:
        self._turn = turn
        self._stream = stream
        self._connection = connection
        self.client = ""
        """The client's name for itself."""
        self.received_bytes = 0
        self.sent_bytes = 0

    async def shake(self, welcome: Callable[[int, list[str]], m.Welcome], timeout_s: float) -> None:
        """Wait for hello, and answer with the welcome for a version and features.

        Raises LinnError after telling the client why, unless it has sent nothing at all.
        """
        try:
            event = await self._first_event(timeout_s)
            if event is None:
                raise ConnectionLost(f"{self._stream.peer} closed the connection without saying hello")
            version, features = agree(event.message)
            self.client = event.message.client if isinstance(event.message, m.Hello) else ""
        except LinnError as error:
            if self.received_bytes:
                await self._refuse(error)
            raise
        frames = frames_of(welcome(version, features), event.correlation)
        await self._stream.send(frames)
        self.sent_bytes = sum(map(len, frames))

    async def _first_event(self, timeout_s: float) -> Event | None:
        try:
            with trio.fail_after(timeout_s):
                return await self._received()
        except trio.TooSlowError:
            raise RequestTimeout(f"{self._stream.peer} did not say hello in time") from None

    async def _received(self) -> Event | None:
        """The hello, read in a turn of its own; None if the client leaves without one."""
        while True:
            await self._turn.next_turn(self._stream.wait_readable)
            count = self._stream.receive_nowait(self._connection.frames.buffers())
            if count == 0:
                return None
            if count is not None:
                self.received_bytes += count
                for event in self._connection.received(count):
                    return event

    async def _refuse(self, error: LinnError) -> None:
        with trio.move_on_after(REST_S), suppress(ConnectionLost):
            await self._stream.send(frames_of(failed_by(error)))
            await discard_rest(self._stream)


async def discard_rest(stream: AcceptedStream) -> None:
    """Read and discard input for a while. Closing with unread bytes resets the connection, which loses the
    last output.
    """
    scratch = memoryview(bytearray(DISCARD_BYTES))
    with trio.move_on_after(REST_S), suppress(ConnectionLost):
        while await stream.receive_into(scratch):
            pass
