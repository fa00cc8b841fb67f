"""Cap'n Proto stream framing: bytes in, whole messages out. No I/O.

Laws: any chunking of the bytes gives the same frames; a frame's size is checked before memory is allocated for it; at
most one receive buffer is held, and for an incomplete frame twice the received bytes, or 1 MiB. A frame larger than the
receive buffer is received into its own memory; up to 1 MiB, its bytes are copied at most once.
"""

from __future__ import annotations

import struct

from linn.core.errors.tree import FrameTooLarge, ProtocolError
from linn.wire.receive_buffers import ReceiveBuffers

SEGMENTS_MAX = 64
"""Limit of the segments of a message. Libraries of other languages use a few; more is not linn's protocol."""
BUFFER_BYTES_MIN = 4 << 10
"""A connection's first buffer size, and its size while the rest of a small frame arrives."""
BUFFER_BYTES_MAX = 256 << 10
"""Largest receive buffer: one receive of this size moves 1 to 4 GB/s; larger buffers did not help."""
LARGE_FRAME_BYTES = 96 << 10
"""Size from which a frame is received into its own memory: copying it costs more than an extra system call. Two smaller
frames fit into the largest buffer."""
SPILL_BYTES = 8 << 10
"""Space for bytes after a large frame: a control message, and the copied part of the next batch."""
FRAME_BYTES_AT_ONCE = 1 << 20
"""Memory allocated for the head of a frame alone; a larger frame gets more as it arrives."""
FRAME_BYTES_MAX_BEFORE_HELLO = 64 << 10

_U32_PAIR = struct.Struct("<II")
_NONE = memoryview(b"")


class FrameReader:
    """Cuts a byte stream into frames. Put bytes into `buffers()`, then call `received(count)`."""

    __slots__ = (
        "_buffer_bytes",
        "_expects_large",
        "_filled",
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_free",
        "_view",
        "failure",
        "frame_bytes_max",
    )

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX_BEFORE_HELLO, free: ReceiveBuffers | None = None) -> None:
        """`free`: the pool of receive buffers; None: the buffer is not shared."""
        self.frame_bytes_max = frame_bytes_max
        self._free = free if free is not None else ReceiveBuffers(0)
        self._buffer_bytes = BUFFER_BYTES_MIN
        self._view = _NONE
        """The receive buffer, or `_NONE` if it is released."""
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._frame_size = 0
        self._expects_large = False
        self.failure: ProtocolError | None = None
        """The reason why the stream can't be cut into frames any more: invalid framing, or a frame over the limit."""

    @property
    def _buffer_bytes_max(self) -> int:
        """The largest buffer; before hello, no more than the largest frame."""
        return min(BUFFER_BYTES_MAX, max(self.frame_bytes_max, FRAME_BYTES_MAX_BEFORE_HELLO))

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return self._frame_filled if self._frame is not None else self._filled

    def buffers(self) -> list[memoryview]:
        """The buffers for the next bytes, to be filled in order; none is empty. Valid until the next `received`.

        While a large frame arrives, they are the rest of that frame and space for the beginning of the next one.
        """
        if self._view is _NONE:
            self._view = self._free.take(self._buffer_bytes)
        if self._frame is not None:
            rest = self._frame[self._frame_filled :]
            return [rest, self._view[:SPILL_BYTES]] if len(self._frame) == self._frame_size else [rest]
        if self._expects_large and self._filled < SPILL_BYTES:
            return [self._view[self._filled : SPILL_BYTES]]
        return [self._view[self._filled :]]

    def buffer(self) -> memoryview:
        """The first of `buffers()`."""
        return self.buffers()[0]

    def release(self) -> None:
        """Release the receive buffer until `buffers` is called again, unless it holds bytes."""
        if self._filled == 0 and self._view is not _NONE:
            view, self._view = self._view, _NONE
            self._free.give(view)

    def close(self) -> None:
        """Drop the receive buffer with its content, and the failure."""
        self._filled, self._frame, self.failure = 0, None, None
        self.release()

    def received(self, count: int) -> list[memoryview]:
        """Process `count` bytes in `buffers()`, and return the frames that are complete now.

        Each frame has its own, writable memory. Malformed bytes after complete frames are reported in `failure`.
        """
        frames: list[memoryview] = []
        if self._frame is not None:
            missing = len(self._frame) - self._frame_filled
            if count < missing or len(self._frame) < self._frame_size:
                self._frame_filled += count
                if count == missing:
                    self._frame = self._larger(self._frame)
                return frames
            frames.append(self._frame)
            self._frame = None
            filled = count - missing
        else:
            filled = self._filled + count
        try:
            self._cut(filled, frames)
        except ProtocolError as error:
            self.failure = error
        if self._frame is None and filled >= min(SPILL_BYTES, self._buffer_bytes):
            # Only small frames filled the buffer.
            self._expects_large = False
            if filled == self._buffer_bytes < self._buffer_bytes_max:
                self._grow()
        return frames

    def _cut(self, filled: int, frames: list[memoryview]) -> None:
        view, position = self._view, 0
        while filled - position >= 8:
            segments_less_one, words = _U32_PAIR.unpack_from(view, position)
            size = 8 + words * 8
            if segments_less_one or not words or size > self.frame_bytes_max:
                size = self._frame_bytes(position, filled)
                if size == 0:
                    break
            end = position + size
            if end > filled:
                if size >= LARGE_FRAME_BYTES:
                    self._begin_frame(position, filled, size)
                    position = filled
                break
            frames.append(memoryview(bytearray(view[position:end])))
            position = end
        rest = filled - position
        if position and rest:
            view[:rest] = view[position:filled]
        self._filled = rest

    def _begin_frame(self, position: int, filled: int, size: int) -> None:
        self._expects_large = size >= LARGE_FRAME_BYTES
        self._frame_size = size
        self._frame = memoryview(bytearray(min(size, FRAME_BYTES_AT_ONCE)))
        self._frame_filled = filled - position
        self._frame[: self._frame_filled] = self._view[position:filled]

    def _larger(self, frame: memoryview) -> memoryview:
        """Double the memory of an incomplete frame that is full."""
        larger = memoryview(bytearray(min(self._frame_size, 2 * len(frame))))
        larger[: len(frame)] = frame
        return larger

    def _frame_bytes(self, position: int, filled: int) -> int:
        """The whole size of the frame at `position`; 0 if its segment table has not arrived yet.

        Raises ProtocolError, FrameTooLarge.
        """
        segments_less_one, words = _U32_PAIR.unpack_from(self._view, position)
        if segments_less_one == 0:
            size = 8 + words * 8
        else:
            if segments_less_one >= SEGMENTS_MAX:
                raise ProtocolError(f"a frame of {segments_less_one + 1} segments: this is not linn's protocol")
            table_bytes = (segments_less_one + 3) // 2 * 8
            if filled - position < table_bytes:
                return 0
            sizes = struct.unpack_from(f"<{segments_less_one + 1}I", self._view, position + 4)
            size = table_bytes + 8 * sum(sizes)
        if size > self.frame_bytes_max:
            raise FrameTooLarge(f"a frame of {size} bytes, more than {self.frame_bytes_max}")
        if words == 0:
            raise ProtocolError("an empty frame")
        return int(size)

    def _grow(self) -> None:
        old, filled = self._view, self._filled
        self._buffer_bytes = min(4 * len(old), self._buffer_bytes_max)
        self._view = self._free.take(self._buffer_bytes)
        self._view[:filled] = old[:filled]
        self._free.give(old)
