"""The output queue of a connection: frames in order, with a bound that slows down its producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from linn.api import AcceptedStream, Buffer, Clock, MemoryShare, Quota, Sendable, behind

FRAME_BYTES = 256
"""Memory of a frame, or of a batch sent from its file, besides its bytes: 130 bytes of objects, and overhead."""
READ_AHEAD_BYTES_MAX = 1 << 20
"""Output that may wait while more is read from a log for the same client: about the size of its socket buffer."""


class Sender(Protocol):
    """Callbacks of an outbox for work that needs a task. Each is called again only after `flush` or `run` has begun."""

    def send_soon(self) -> None:
        """Schedule a call of `flush` after other tasks have run."""

    def begin_sending(self) -> None:
        """Start a task that calls `run`."""


class Output(Protocol):
    """The part of an outbox that handlers of requests use."""

    def put(self, frames: Sequence[Sendable]) -> None:
        """Queue frames after all earlier ones, to be sent soon."""

    def hold(self, frames: Sequence[Sendable]) -> None:
        """Queue frames, to be sent with others."""

    def has_room(self) -> bool:
        """Whether more may be read for this client."""

    async def wait_room(self) -> None:
        """Wait until `has_room`."""

    @property
    def is_short(self) -> bool:
        """Whether memory is short, so that answers should be small."""


class Outbox:
    """A queue of frames that any task fills without waiting. Frames that the stream does not take at once are sent by a
    task.

    Laws: `put` never loses or reorders frames. Readers of a log for this client (a subscription, a fetch) call
    `wait_room` first, so that about one answer waits in memory, however many are requested. An answer that is ready is
    put at once, and the reader of requests waits while `is_full`. A connection whose client keeps up has no sending
    task.
    """

    __slots__ = (
        "_ahead_bytes_max",
        "_bytes",
        "_bytes_max",
        "_clock",
        "_closed",
        "_counted_bytes",
        "_frames",
        "_has_task",
        "_is_due",
        "_memory",
        "_quota",
        "_room",
        "_sender",
        "_sending_bytes",
        "_stream",
        "sent_bytes",
    )

    def __init__(
        self, stream: AcceptedStream, bytes_max: int, sender: Sender, memory: MemoryShare, quota: Quota, clock: Clock
    ) -> None:
        """`memory` counts the waiting bytes, except answers that the stream takes at once. `quota`: the user's."""
        self._quota = quota
        self._clock = clock
        self._stream = stream
        self._bytes_max = bytes_max
        self._ahead_bytes_max = min(bytes_max, READ_AHEAD_BYTES_MAX)
        self._sender = sender
        self._memory = memory
        self._counted_bytes = 0
        self._frames: list[Sendable] = []
        self._bytes = 0
        self._sending_bytes = 0
        self._is_due = False
        """Whether `flush` has been scheduled."""
        self._has_task = False
        self._closed = False
        self.sent_bytes = 0
        """Bytes taken by the stream."""
        self._room: trio.Event | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes not yet passed to the stream."""
        return self._bytes + self._sending_bytes

    def put(self, frames: Sequence[Sendable]) -> None:
        """Queue frames after all earlier ones, to be sent soon."""
        if not self._has_task:
            self._count(memory_bytes(frames))
        self.hold(frames)
        if not (self._is_due or self._has_task or self._closed):
            self._is_due = True
            self._sender.send_soon()

    def hold(self, frames: Sequence[Sendable]) -> None:
        """Queue frames without sending them before the next `flush` or `put`, to send many answers at once."""
        self._frames += frames
        before = self._bytes
        for frame in frames:
            self._bytes += len(frame)
        if self._quota.is_limited:
            self._quota.sent(self._bytes - before)
        if self._has_task:
            self._count(memory_bytes(frames))

    def _count(self, more: int) -> None:
        if not self._closed:
            self._counted_bytes += more
            self._memory.used_bytes += more

    def flush(self) -> None:
        """Send as much as the stream takes without waiting; a task sends the rest. Raises ConnectionLost."""
        self._is_due = False
        if not self._frames or self._has_task or self._closed:
            return
        sent = self._stream.send_nowait(self._frames)
        self.sent_bytes += sent
        if sent == self._bytes:
            self._frames = []
            self._bytes = 0
            if self._counted_bytes:
                self._count(-self._counted_bytes)
            self._tell_room()
            return
        self._frames = behind(self._frames, sent)
        self._bytes -= sent
        self._count(memory_bytes(self._frames) - self._counted_bytes)
        self._has_task = True
        self._sender.begin_sending()

    def close(self) -> None:
        """Discard the output, because the connection ends. Idempotent."""
        if not self._closed:
            self._count(-self._counted_bytes)
            self._closed = True
            del self._sender

    def has_room(self) -> bool:
        """Whether more may be read for this client; if memory is short, only when no output waits."""
        if self._quota.is_limited and self._quota.send_pause_s():
            return False
        waiting, memory = self._bytes + self._sending_bytes, self._memory
        return waiting < self._ahead_bytes_max and (not waiting or memory.used_bytes < memory.bytes_max)

    @property
    def is_full(self) -> bool:
        """Whether so much output waits that requests should wait too."""
        waiting, memory = self._bytes + self._sending_bytes, self._memory
        return waiting >= self._bytes_max or (waiting > 0 and memory.used_bytes >= memory.bytes_max)

    @property
    def is_short(self) -> bool:
        """Whether memory is short, so that answers should be small."""
        return self._memory.is_over

    async def wait_room(self) -> None:
        """Wait until `has_room`."""
        while not self.has_room():
            if self._quota.is_limited and (pause_s := self._quota.send_pause_s()):
                await self._clock.sleep(pause_s)
                continue
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def _tell_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    async def run(self) -> None:
        """Send until the queue is empty. Raises ConnectionLost: no more is sent."""
        while self._frames:
            frames, self._frames = self._frames, []
            self._sending_bytes, self._bytes = self._bytes, 0
            await self._stream.send(frames)
            del frames  # Otherwise an idle connection would keep its last frames, and the space of deleted files.
            self.sent_bytes += self._sending_bytes
            self._sending_bytes = 0
            self._count(memory_bytes(self._frames) - self._counted_bytes)
            self._tell_room()
        self._has_task = False


def memory_bytes(frames: Sequence[Sendable]) -> int:
    """The memory that frames keep alive: each underlying buffer once, and a little for each frame."""
    buffers: dict[int, int] = {}
    for frame in frames:
        if isinstance(frame, Buffer):
            whole = frame.obj if isinstance(frame, memoryview) else frame
            buffers[id(whole)] = memoryview(whole).nbytes
    return FRAME_BYTES * len(frames) + sum(buffers.values())
