"""A reader of lines from a byte stream, with a limit on the length of a line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

READ_BYTES = 64 << 10
"""Bytes read at a time: the size of a pipe on Linux."""
CUT = " [cut]"
"""End of a line that exceeded its limit."""


class LineReader:
    """Lines of UTF-8 from a function that receives bytes; b"" ends them. Invalid UTF-8 is replaced."""

    def __init__(self, receive: Callable[[int], Awaitable[bytes | bytearray]], line_bytes_max: int) -> None:
        self._receive = receive
        self._line_bytes_max = line_bytes_max
        self._buffer = bytearray()
        self._skips = False
        """Whether the rest of a line that was too long is being skipped."""
        self._ended = False

    async def line(self) -> str | None:
        """Wait for the next line, without its end; None after the last one. Cancellation: nothing is lost."""
        while True:
            line = self._next()
            if line is not None:
                return line
            if self._ended:
                return None
            received = await self._receive(READ_BYTES)
            self._ended = not received
            self._buffer += received

    def _next(self) -> str | None:
        """Take a line out of the buffer; None if there is no complete one."""
        while True:
            end = self._buffer.find(b"\n")
            if end < 0 and len(self._buffer) <= self._line_bytes_max and not (self._ended and self._buffer):
                return None
            is_whole = end >= 0 or self._ended
            size = end if end >= 0 else len(self._buffer)
            line = bytes(self._buffer[: min(size, self._line_bytes_max)])
            del self._buffer[: size + 1]
            skipped, self._skips = self._skips, not is_whole
            if not skipped:
                text = line.decode("utf-8", "replace").removesuffix("\r")
                return text + CUT if size > self._line_bytes_max else text
            if not is_whole:
                return None
