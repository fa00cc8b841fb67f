"""The handshake: hello and welcome at the beginning of a connection, or a refusal."""

from __future__ import annotations

from contextlib import suppress

import trio

from linn.api import AcceptedStream, ConnectionLost, LinnError, RequestTimeout, Traffic, TurnSlot
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, agree, frames_of
from linn.wire.failure import failed_by

DISCARD_BYTES = 64 << 10
REST_S = 1.0
"""Time during which the input of a refused client is still read and discarded."""


class Handshake:
    """The broker's side of one handshake: `hello`, then `welcome`."""

    def __init__(self, stream: AcceptedStream, connection: Connection, turn: TurnSlot) -> None:
        self.turn = turn
        self.stream = stream
        self.connection = connection
        self.client = ""
        """The client's name as sent by the client."""
        self.producer_id = self.producer_key = 0
        """The producer ids that the client has from an earlier connection, and their key; 0: none."""
        self.version = 0
        self.features: list[str] = []
        """Protocol features that both sides support."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self._correlation = 0

    def traffic(self) -> Traffic:
        """The bytes of the handshake so far."""
        return Traffic(self.received_bytes, self.sent_bytes)

    async def hello(self, timeout_s: float) -> None:
        """Wait for hello. Raises LinnError after telling the client the reason, unless the client has sent nothing."""
        try:
            event = await self._first_event(timeout_s)
            if event is None:
                raise ConnectionLost(f"{self.stream.peer} closed the connection without saying hello")
            self.version, self.features = agree(event.message)
            if isinstance(event.message, m.Hello):
                self.client = event.message.client
                self.producer_id, self.producer_key = event.message.producer_id, event.message.producer_key
        except LinnError as error:
            if self.received_bytes:
                await self.refuse(error)
            raise
        self._correlation = event.correlation

    async def welcome(self, message: m.Welcome) -> None:
        """Answer the hello."""
        frames = frames_of(message, self._correlation)
        await self.stream.send(frames)
        self.sent_bytes = sum(map(len, frames))

    async def _first_event(self, timeout_s: float) -> Event | None:
        try:
            with trio.fail_after(timeout_s):
                return await self._received()
        except trio.TooSlowError:
            raise RequestTimeout(f"{self.stream.peer} did not say hello in time") from None

    async def _received(self) -> Event | None:
        """Read the hello in a turn of its own; None if the client leaves without sending one."""
        while True:
            await self.turn.next_turn(self.stream.wait_readable)
            count = self.stream.receive_nowait(self.connection.frames.buffers())
            if count == 0:
                return None
            if count is not None:
                self.received_bytes += count
                for event in self.connection.received(count):
                    return event

    async def refuse(self, error: LinnError) -> None:
        """Tell the client why it is refused, in place of a welcome."""
        with trio.move_on_after(REST_S), suppress(ConnectionLost):
            await self.stream.send(frames_of(failed_by(error)))
            await discard_rest(self.stream)


async def discard_rest(stream: AcceptedStream) -> None:
    """Read and discard input for a while. Closing with unread bytes resets the connection, which loses the
    last output.
    """
    scratch = memoryview(bytearray(DISCARD_BYTES))
    with trio.move_on_after(REST_S), suppress(ConnectionLost):
        while await stream.receive_into(scratch):
            pass
