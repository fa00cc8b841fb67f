"""The handshake: hello, a login if the listener requires one, and welcome; or a refusal.

Law: until the client is welcome, nothing but a login's messages is read, in small frames, for a limited time.
"""

from __future__ import annotations

import math
from contextlib import suppress

import trio

from linn.api import (
    AcceptedStream,
    ConnectionLost,
    Identity,
    LinnError,
    Login,
    ProtocolError,
    RequestTimeout,
    Traffic,
    TurnSlot,
)
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, agree, frames_of
from linn.wire.failure import failed_by

_DISCARDED = memoryview(bytearray(64 << 10))
"""Takes the input that nothing reads, of all connections."""
FRAME_BYTES_MAX = 16 << 10
"""Limit of a frame until the client is welcome; a token of 8 KiB fits."""
REST_S = 1.0
"""Time during which the input of a refused client is still read and discarded."""


class Handshake:
    """The broker's side of one handshake: `hello`, `log_in`, then `welcome`."""

    def __init__(self, stream: AcceptedStream, connection: Connection, turn: TurnSlot, timeout_s: float) -> None:
        """`timeout_s`: time that the client has for all its messages together."""
        connection.allow_frames(FRAME_BYTES_MAX)
        self.turn = turn
        self._left_s = timeout_s
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
        self.identity: Identity | None = None
        """The user of the client; set by `log_in`."""
        self.logs_in = False
        """Whether the client has a login, in place of what its connection says about it."""
        self._correlation = 0
        self._last_words = ""
        """The mechanism's last message, which goes with the welcome."""

    @property
    def ends_s(self) -> float:
        """The Unix time at which the login ends; infinite for most."""
        return self.identity.ends_s if self.identity is not None else math.inf

    def traffic(self) -> Traffic:
        """The bytes of the handshake so far."""
        return Traffic(self.received_bytes, self.sent_bytes)

    async def hello(self) -> None:
        """Wait for hello. Raises LinnError after telling the client the reason, unless the client has sent nothing."""
        try:
            event = await self._next_event("say hello")
            self.version, self.features = agree(event.message)
            if isinstance(event.message, m.Hello):
                self.client = event.message.client
                self.producer_id, self.producer_key = event.message.producer_id, event.message.producer_key
                self.logs_in = event.message.logs_in
        except LinnError as error:
            if self.received_bytes:
                await self.refuse(error)
            raise
        self._correlation = event.correlation

    async def log_in(self, login: Login) -> None:
        """Let the client log in, unless its connection says who it is. Raises LinnError after telling the client."""
        try:
            data = b""
            if login.identity is None:
                await self._send(m.Challenge(login.mechanisms))
            while login.identity is None:
                event = await self._next_event("log in")
                self._correlation, message = event.correlation, event.message
                if not isinstance(message, m.Authenticate):
                    raise ProtocolError(f"{type(message).__name__} before the login")
                data = await login.step(message.mechanism, message.data.encode())
                if login.identity is None:
                    await self._send(m.Challenge([], data.decode()))
        except LinnError as error:
            await self.refuse(error)
            raise
        self.identity, self._last_words = login.identity, data.decode()

    async def welcome(self, message: m.Welcome) -> None:
        """Answer the hello, or the login's last message."""
        message.login = self._last_words
        await self._send(message)

    async def _send(self, message: m.Message) -> None:
        frames = frames_of(message, self._correlation)
        with trio.move_on_after(self._left_s) as scope:
            await self.stream.send(frames)
        if scope.cancelled_caught:
            raise ConnectionLost(f"{self.stream.peer} does not read")
        self.sent_bytes += sum(map(len, frames))

    async def _next_event(self, what: str) -> Event:
        """Wait for the client's next message. Raises ConnectionLost, RequestTimeout, ProtocolError."""
        began_s = trio.current_time()
        try:
            with trio.fail_after(self._left_s):
                event = await self._received()
        except trio.TooSlowError:
            raise RequestTimeout(f"{self.stream.peer} did not {what} in time") from None
        if event is None:
            raise ConnectionLost(f"{self.stream.peer} closed the connection and did not {what}")
        self._left_s = max(0.0, self._left_s - (trio.current_time() - began_s))
        return event

    async def _received(self) -> Event | None:
        """Read a message in a turn of its own; None if the client leaves without sending one."""
        if self.connection.has_more:
            for event in self.connection.received(0):
                return event
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
    with trio.move_on_after(REST_S), suppress(ConnectionLost):
        while await stream.receive_into(_DISCARDED):
            pass
