"""A connection between two brokers: messages both ways, pings, and the end of one that is silent or does not read.

Laws: each side pings twice a second, and the other answers. A connection is lost that is silent for `SILENCE_S`, takes
no output for as long, or leaves pings unanswered for as long while it takes output. Output is sent in the order of
`put`. Bytes that were handed to the stream may have been read; the others have surely not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import trio

from linn.core.batch.flat_message import Buffer
from linn.core.connections.listener_traffic import Traffic
from linn.core.env.env import AcceptedStream, Clock, Stream
from linn.core.env.file_region import FileRegion, Sendable
from linn.core.errors.group import raise_once
from linn.core.errors.tree import ConnectionLost, LinnError, StorageError
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of
from linn.wire.failure import error_of, failed_by

PING_S = 0.5
SILENT_PINGS_MAX = 8
SILENCE_S = PING_S * SILENT_PINGS_MAX
"""Longest silence: less than the lease of a session (6 s), so that links end before the store gives a node up."""
BEGINNING_BYTES_MAX = 16 << 10
"""Limit of a message before the proof."""
BUSY_BYTES_MIN = 1 << 9
"""Bytes between two pings from which the other side is sending more than pings."""
OUTGOING_BYTES_MAX = 4 << 20
"""Output that may wait before no more is begun, and the side that serves reads no more: as much as a link sends in some
milliseconds."""
PIECE_BYTES = 64 << 10
"""Bytes given to the stream at a time: a link that takes fewer in `SILENCE_S` is lost."""
REGION_BYTES_MAX = 1 << 20
"""Largest piece of a file that is sent without being read: it also has `SILENCE_S`."""
RECEIVES_IN_A_ROW_MAX = 8
"""Receives without a pause: 2 MiB, in about a millisecond, in which other tasks wait."""
LAST_WORDS_S = 1.0
"""Time that the other side has to read why it is refused."""


class Channel:
    """The connection to one other broker. `send` and `next` before the proof; then `run`."""

    def __init__(self, stream: Stream | AcceptedStream, clock: Clock, *, is_dialer: bool) -> None:
        self.peer = stream.peer
        self.error: LinnError | None = None
        """The reason for the end."""
        self.changed = trio.lowlevel.ParkingLot()
        """Wakes tasks that wait for room, or for the end."""
        self.waiting_bytes = 0
        """Output that the stream has not taken."""
        self.put_bytes = 0
        """All output, from the first byte on."""
        self.handed_bytes = 0
        """The part of it that the stream may have sent."""
        self._received_bytes = 0
        self._is_dialer = is_dialer
        self._is_paused = False
        """Whether nothing is read, because much output waits."""
        self._stream = stream
        self._send: Callable[[Sequence[Any]], Awaitable[None]] = stream.send
        """Takes pieces of files only if the stream was accepted."""
        self._clock = clock
        self._codec = Connection(from_client=not is_dialer, from_peer=True)
        self._codec.allow_frames(BEGINNING_BYTES_MAX)
        self._outgoing: list[Sendable] = []
        self._wake = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._heard_bytes = 0
        """Bytes received since the last tick."""
        self._silent_ticks = self._unanswered_pings = 0
        self._pings = 0
        self._pinged_s = 0.0
        """When the last of the pings was put into the output. Its answer tells the time in the middle of the way."""
        self.on_clock: Callable[[float], None] | None = None
        """Called after each ping with the time that the other side's wall clock is ahead of this one's, within half of
        the time that the ping took."""
        self._left_bytes = 0
        """Output that waited at the last tick."""
        self._is_sending = False

    def traffic(self) -> Traffic:
        """The bytes so far, and the output that waits."""
        return Traffic(self._received_bytes, self.put_bytes - self.waiting_bytes, 0, self.waiting_bytes)

    def silent_s(self) -> float:
        """Time since the other side's last word, or since the first ping that it has not answered, in whole pauses
        between pings: up to one of them less than it was.

        Those are counted, not the time: after a pause of this process, the input that waits comes first.
        """
        silent_ticks = 0 if self._heard_bytes else self._silent_ticks
        return max(silent_ticks, self._unanswered_pings - 1, 0) * PING_S

    # --- one message at a time ---

    async def send(self, message: m.Message) -> None:
        """Send a message, before `run`. Raises ConnectionLost. Cancellation: nothing else can be sent."""
        self._is_sending = True
        await self._stream.send(frames_of(message))
        self._is_sending = False

    async def next(self) -> Event:
        """Wait for the next message, before `run`. Raises ConnectionLost, ProtocolError."""
        for event in self._codec.received(0):
            return event
        while True:
            count = await self._stream.receive_into(self._codec.buffer())
            self._received_bytes += count
            if not count:
                raise ConnectionLost(f"{self.peer} closed the connection")
            for event in self._codec.received(count):
                return event

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Accept larger messages: the other side has proved who it is."""
        self._codec.allow_frames(frame_bytes_max)

    async def refuse(self, error: LinnError) -> None:
        """Tell the other side why the connection ends, if it can still be told. Never raises ConnectionLost."""
        if self._is_sending:
            return
        with trio.move_on_after(LAST_WORDS_S):
            try:
                await self._stream.send(frames_of(failed_by(error)))
                # Closing with unread input resets the connection, which loses the last output.
                scratch = memoryview(bytearray(PIECE_BYTES))
                while await self._stream.receive_into(scratch):
                    pass
            except ConnectionLost:
                return

    async def aclose(self) -> None:
        """Close the stream. Idempotent."""
        await self._stream.aclose()

    # --- both ways at once ---

    def put(self, frames: Sequence[Sendable]) -> None:
        """Send frames after all earlier ones. Dropped if the connection is lost.

        Only the side that serves may send pieces of files.
        """
        if self.error is not None:
            return
        size = sum(map(len, frames))
        self._outgoing += frames
        self.put_bytes += size
        self.waiting_bytes += size
        self._wake.set()

    def has_room(self) -> bool:
        """Whether more may be begun, because not much output waits."""
        return self.waiting_bytes < OUTGOING_BYTES_MAX

    async def wait_room(self) -> None:
        """Wait until `has_room`, or until the connection is lost."""
        while not self.has_room() and self.error is None:
            await self.changed.park()

    def lose(self, error: LinnError) -> None:
        """End the connection; only the first reason counts."""
        if self.error is None:
            self.error = error
            if self._scope is not None:
                self._scope.cancel()

    async def run(self, handle: Callable[[Event], None], tick: Callable[[], None]) -> LinnError:
        """Read, write and ping until the connection is lost; returns the reason.

        Args:
            handle: called with each message except pings. A LinnError that it raises ends the connection.
            tick: called twice a second; so does its LinnError.

        Cancellation: the connection is lost for waiting tasks, too.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                for task in (partial(self._read, handle), self._write, partial(self._ping, tick)):
                    nursery.start_soon(self._until_lost, task)
                if self.error is not None:
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_once(group)
        finally:
            self.error = self.error or ConnectionLost(f"the connection to {self.peer} was ended")
            self.changed.unpark_all()
        return self.error

    async def _until_lost(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except LinnError as error:
            self.lose(error)

    async def _read(self, handle: Callable[[Event], None]) -> None:
        in_a_row = 0
        self._take(0, handle)
        while True:
            # A broker that dialed has windows for its own output, so that one of the two always reads.
            if not self._is_dialer and not self.has_room():
                self._is_paused = True
                await self.wait_room()
                self._is_paused = False
            count = self._stream.receive_nowait(self._codec.buffers()) if in_a_row < RECEIVES_IN_A_ROW_MAX else None
            if count is None:
                in_a_row = 0
                self._codec.release()
                await self._stream.wait_readable()
                continue
            if not count:
                raise ConnectionLost(f"{self.peer} closed the connection")
            in_a_row += 1
            self._take(count, handle)

    def _take(self, count: int, handle: Callable[[Event], None]) -> None:
        self._heard_bytes += count
        self._received_bytes += count
        for event in self._codec.received(count):
            message = event.message
            if event.lane:
                handle(event)
            elif isinstance(message, m.Ping):
                if self.has_room():  # Otherwise pings could fill the memory of a broker whose output is not read.
                    answer = m.PeerPong(self._clock.now_ms()) if event.correlation else m.Pong()
                    self.put(frames_of(answer, event.correlation))
            elif isinstance(message, m.Pong):
                self._unanswered_pings = 0
            elif isinstance(message, m.PeerPong):
                self._unanswered_pings = 0
                if event.correlation == self._pings and self.on_clock is not None:
                    way_s = (self._clock.monotonic() - self._pinged_s) / 2
                    self.on_clock((message.clock_ms - self._clock.now_ms()) / 1000 + way_s)
            elif isinstance(message, m.Failed):
                raise error_of(message)
            else:
                handle(event)

    async def _write(self) -> None:
        while True:
            if not self._outgoing:
                self._wake = trio.Event()
                await self._wake.wait()
            frames, self._outgoing = self._outgoing, []
            for piece in pieces(frames):
                size = sum(map(len, piece))
                self.handed_bytes += size
                self._is_sending = True
                with trio.move_on_after(SILENCE_S) as scope:
                    await self._send(piece)
                if scope.cancelled_caught:
                    raise ConnectionLost(f"{self.peer} has read nothing for {SILENCE_S:g} s")
                self._is_sending = False
                self.waiting_bytes -= size
                self.changed.unpark_all()

    async def _ping(self, tick: Callable[[], None]) -> None:
        while True:
            await self._clock.sleep(PING_S)
            # While nothing is read here, the other side is there as long as it takes output.
            is_reading = self._is_paused and self.waiting_bytes < self._left_bytes
            self._silent_ticks = 0 if self._heard_bytes or is_reading else self._silent_ticks + 1
            self._left_bytes = self.waiting_bytes
            if self._silent_ticks >= SILENT_PINGS_MAX:
                raise ConnectionLost(f"{self.peer} has been silent for {SILENCE_S:g} s")
            # Pings wait behind a long output, which has a limit of its own, and their answers behind the other side's.
            if self.waiting_bytes or self._heard_bytes >= BUSY_BYTES_MIN:
                self._unanswered_pings = 0
            if self._unanswered_pings >= SILENT_PINGS_MAX:
                raise ConnectionLost(f"{self.peer} has answered no ping for {SILENCE_S:g} s")
            self._unanswered_pings += 1
            self._heard_bytes = 0
            self._pings += 1
            self._pinged_s = self._clock.monotonic()
            self.put(frames_of(m.Ping(), self._pings))
            tick()


def pieces(frames: Sequence[Sendable]) -> Iterator[list[Sendable]]:
    """Divide frames into pieces of at most `PIECE_BYTES`; a piece of a file that is not large goes as a whole, with
    the memory before it, so that both are in the same packets.

    Raises StorageError: a file can't be read.
    """
    piece: list[Sendable] = []
    size = 0
    for frame in frames:
        if not isinstance(frame, Buffer):
            if len(frame) <= REGION_BYTES_MAX:
                yield [*piece, frame]
                piece, size = [], 0
                continue
            if piece:
                yield piece
                piece, size = [], 0
            yield from _pieces_of(frame)
            continue
        rest = memoryview(frame)
        while len(rest):
            part = rest[: PIECE_BYTES - size]
            piece.append(part)
            size += len(part)
            rest = rest[len(part) :]
            if size == PIECE_BYTES:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece


def _pieces_of(region: FileRegion) -> Iterator[list[Sendable]]:
    """Read a large piece of a file."""
    while len(region):
        data = region.read(PIECE_BYTES)
        if not data:
            raise StorageError("a file was cut while it was sent to another broker")
        yield [data]
        region = region.behind(len(data))
