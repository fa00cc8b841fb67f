"""What waits to be sent on one connection: frames in order, within a bound that slows their makers down."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from linn.core.env import AcceptedStream
from linn.core.file_region import Sendable, behind


class Outbox:
    """Frames go in from any task without waiting; one task sends them.

    Law: `put` never loses or reorders. Who produces because it wants to (a subscription, a read request) calls
    `wait_room` before it does; who must answer puts, and the reader of requests waits instead.
    """

    def __init__(self, stream: AcceptedStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._frames: list[Sendable] = []
        self._bytes = 0
        self._sending_bytes = 0
        self.sent_bytes = 0
        """Bytes that the stream has taken."""
        self._wake: trio.Event | None = None
        self._room: trio.Event | None = None
        self._empty: trio.Event | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not handed to the stream yet."""
        return self._bytes + self._sending_bytes

    def put(self, frames: Sequence[Sendable]) -> None:
        """Send frames after all earlier ones, from the sending task."""
        self.hold(frames)
        self._wake_sender()

    def hold(self, frames: Sequence[Sendable]) -> None:
        """As `put`, but nothing is sent before somebody calls `flush` or `put`: for one who answers many at once."""
        self._frames += frames
        for frame in frames:
            self._bytes += len(frame)

    def flush(self) -> None:
        """Send at once what the stream takes without waiting; the sending task does the rest. Raises ConnectionLost."""
        if not self._frames or self._sending_bytes:
            return
        sent = self._stream.send_nowait(self._frames)
        self.sent_bytes += sent
        if sent == self._bytes:
            self._frames = []
            self._bytes = 0
            return
        self._frames = behind(self._frames, sent)
        self._bytes -= sent
        self._wake_sender()

    def _wake_sender(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def has_room(self) -> bool:
        """Whether more may be produced."""
        return self.waiting_bytes < self._bytes_max

    async def wait_room(self) -> None:
        """Wait until `has_room`."""
        while not self.has_room():
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    async def run(self) -> None:
        """Send until cancelled. Raises ConnectionLost."""
        while True:
            if not self._frames:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            frames, self._frames = self._frames, []
            self._sending_bytes, self._bytes = self._bytes, 0
            await self._stream.send(frames)
            del frames  # Or a connection that waits would keep what it sent last, and the space of deleted files.
            self.sent_bytes += self._sending_bytes
            self._sending_bytes = 0
            if self._room is not None:
                self._room.set()
                self._room = None
