"""Receive buffers shared by connections: one has a buffer while it receives, and none while it waits for its client.

Law: a bounded number of bytes is kept for reuse, however many connections there are.
"""

from __future__ import annotations

SHARED_BYTES_MAX = 1 << 20
"""Buffers are given back before the next connection's turn: a few of each size serve all of them."""


class ReceiveBuffers:
    """The unused buffers, by size."""

    __slots__ = ("_bytes", "_bytes_max", "_free")

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: beyond it, returned buffers are dropped."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._free: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """Take a buffer, with arbitrary content."""
        free = self._free.get(size)
        if not free:
            return memoryview(bytearray(size))
        self._bytes -= size
        return free.pop()

    def give(self, buffer: memoryview) -> None:
        """Return a buffer from `take`. It must not be used any more."""
        size = len(buffer)
        if self._bytes + size <= self._bytes_max:
            self._bytes += size
            self._free.setdefault(size, []).append(buffer)
