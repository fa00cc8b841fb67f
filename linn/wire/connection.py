"""One connection of the native protocol as a pure object: bytes in, events out. Used by broker and client alike.

Laws: the first frame is hello (to a broker) or welcome or failed (to a client); the batches that a frame announces
directly follow it; after an error the connection yields no more events. It uses no socket, task or clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.core.batch.flat_message import Buffer
from linn.core.env.file_region import Sendable
from linn.core.errors.tree import FrameTooLarge, LinnError, ProtocolError, VersionUnsupported
from linn.core.log.storage import StoredBatch
from linn.wire import codec
from linn.wire.framing import FrameReader
from linn.wire.messages import Done, Hello, Message, Welcome
from linn.wire.receive_buffers import ReceiveBuffers

VERSION = 1
FEATURES: tuple[str, ...] = ("zstd",)
PEER = "peer"
"""The feature of a broker that connects to a listener for brokers."""
BATCHES_MAX = 1_024
"""Limit of the batches after one frame; a client with more batches sends more frames."""
FRAMES_BYTES_FACTOR = 2
"""Limit of the bytes of all batches after one frame, as a multiple of the largest frame."""


JOINED_BYTES_MAX = 4 << 10
"""Size from which a batch is sent without a copy."""


class Event(NamedTuple):
    """A complete message of the peer."""

    correlation: int
    message: Message
    batches: list[RecordBatch]
    lane: int = 0
    """Between brokers: the number of a lane; 0: the message is about the link itself."""


class Connection:
    """The receiving half, and the encoding of output. One per TCP or Unix connection."""

    def __init__(
        self, free: ReceiveBuffers | None = None, *, from_client: bool = False, from_peer: bool = False
    ) -> None:
        """
        Args:
            free: receive buffers shared with others.
            from_client: refuse messages that only brokers send.
            from_peer: the other side is a broker, which sends messages in lanes.
        """
        self.frames = FrameReader(free=free)
        self._from_client = from_client
        self._from_peer = from_peer
        self._lane = 0
        self._waiting = codec.Decoded(0, 0, Done())
        self._unread: deque[memoryview] = deque()
        self._batches: list[RecordBatch] = []
        self._missing = 0
        self._batch_bytes = 0
        self._failure: LinnError | None = None

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Accept larger frames, after hello."""
        self.frames.frame_bytes_max = frame_bytes_max

    def buffers(self) -> list[memoryview]:
        """The buffers for the next bytes; see `FrameReader.buffers`."""
        return self.frames.buffers()

    def buffer(self) -> memoryview:
        """The first of `buffers()`."""
        return self.frames.buffer()

    def release(self) -> None:
        """Release the receive buffer while no bytes arrive; see `FrameReader.release`."""
        self.frames.release()

    def close(self) -> None:
        """Drop received bytes, and the receive buffer."""
        self._unread.clear()
        self._failure = None
        self.frames.close()

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete message."""
        return self.frames.pending_bytes + (self._batch_bytes if self._missing else 0)

    @property
    def has_more(self) -> bool:
        """Whether bytes have arrived that `received(0)` processes."""
        return bool(self._unread) or self.frames.failure is not None

    def received(self, count: int) -> Iterator[Event]:
        """Process `count` bytes in `buffers()`, and yield the messages that are complete now.

        The iterator may be left early; the next call yields the rest, even with `count` 0.

        Raises:
            ProtocolError, BatchMalformed: after the last valid message, and on every later call: the stream can't be
                trusted any more; close it.
        """
        if self._failure is None and self.frames.failure is None:
            self._unread.extend(self.frames.received(count))
        return self._give()

    def _give(self) -> Iterator[Event]:
        # One by one: reading thousands of small messages takes long, and a caller may pause in between.
        unread = self._unread
        while unread:
            event = self._read(unread.popleft())
            if event is not None:
                yield event
        if self._failure or self.frames.failure:
            raise self._failure or self.frames.failure  # type: ignore[misc] # No name: its traceback would know it.

    def _read(self, frame: memoryview) -> Event | None:
        """Read the message of this frame, or the message that it completes. Raises ProtocolError, BatchMalformed."""
        try:
            if self._missing:
                self._add_batch(frame)
            else:
                if self._from_peer:
                    self._lane = codec.take_out_of_lane(frame)
                self._begin(codec.decode(frame, from_client=self._from_client, from_peer=self._from_peer))
        except LinnError as error:
            self._failure = error
            self._unread.clear()
            raise
        if self._missing:
            return None
        correlation, _, message = self._waiting
        batches, self._batches = self._batches, []  # Otherwise an idle connection would keep its last batches.
        return Event(correlation, message, batches, self._lane)

    def _add_batch(self, frame: memoryview) -> None:
        self._batches.append(RecordBatch(frame))
        self._missing -= 1
        self._batch_bytes += len(frame)
        if self._batch_bytes > FRAMES_BYTES_FACTOR * self.frames.frame_bytes_max:
            raise FrameTooLarge(f"{self._batch_bytes} bytes of batches behind one frame")

    def _begin(self, decoded: codec.Decoded) -> None:
        if decoded.batches > BATCHES_MAX:
            raise ProtocolError(f"{decoded.batches} batches behind one frame, more than {BATCHES_MAX}")
        self._waiting = decoded
        self._missing = decoded.batches
        self._batch_bytes = 0


def frames_of(message: Message, correlation: int = 0, batches: list[RecordBatch] | None = None) -> list[Buffer]:
    """The output for one message: the control frame, then each batch's bytes unchanged."""
    if not batches:
        return [codec.encode(message, correlation)]
    frames: list[Buffer] = [codec.encode(message, correlation, len(batches))]
    frames.extend(batch.message for batch in batches)
    return frames


def frames_to(message: Message, correlation: int, batches: Sequence[RecordBatch | StoredBatch]) -> list[Sendable]:
    """The output for one message to a client: large batches may be sent from their files, small ones are copied into
    one buffer.

    Output keeps no other memory alive: a view of a small batch would keep the whole buffer that it was read into.
    """
    frames: list[Sendable] = []
    joined: list[Buffer] = [codec.encode(message, correlation, len(batches))]
    for batch in batches:
        if isinstance(batch, RecordBatch) and batch.size < JOINED_BYTES_MAX:
            joined.append(batch.message)
        else:
            if joined:
                frames.append(b"".join(joined))
                joined = []
            frames.append(batch.message)
    if joined:
        frames.append(b"".join(joined))
    return frames


def hello(client: str, producer_id: int = 0, producer_key: int = 0, *, logs_in: bool = False) -> Hello:
    """The first message of a client of this version; with the producer ids that it has from an earlier connection.

    `logs_in`: it has a login.
    """
    return Hello(VERSION, VERSION, list(FEATURES), client, producer_id, producer_key, logs_in)


def agree(message: Message) -> tuple[int, list[str]]:
    """The version and features shared by a broker and the client that sent `message`.

    Raises:
        ProtocolError: the first message is not hello.
        VersionUnsupported: no version in common.
    """
    if not isinstance(message, Hello):
        raise ProtocolError(f"the first message is {type(message).__name__}, not Hello")
    if not message.version_min <= VERSION <= message.version_max:
        raise VersionUnsupported(
            f"the client speaks versions {message.version_min} to {message.version_max}, the broker speaks {VERSION}"
        )
    return VERSION, [feature for feature in FEATURES if feature in message.features]


def check_welcome(message: Message) -> Welcome:
    """Check the broker's welcome, for a client.

    Raises:
        ProtocolError: the message is not a welcome. VersionUnsupported: the broker speaks a version that it was not
            offered.
    """
    if not isinstance(message, Welcome):
        raise ProtocolError(f"the broker answered hello with {type(message).__name__}")
    if message.version != VERSION:
        raise VersionUnsupported(f"the broker speaks version {message.version}, this client {VERSION}")
    return message
