"""Receive buffers shared by connections, which hold a buffer only while they receive.

Law: the number of bytes kept for reuse is bounded, however many connections there are.
"""

from __future__ import annotations

SHARED_BYTES_MAX = 1 << 20
"""Limit of the unused bytes: buffers are returned before the next turn, so a few of each size serve all."""


class ReceiveBuffers:
    """The unused buffers, by size."""

    __slots__ = ("_bytes", "_bytes_max", "_free")

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: the limit of unused bytes; buffers returned beyond it are dropped."""
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
        """Return a buffer from `take`, which must not be used any more."""
        size = len(buffer)
        if self._bytes + size <= self._bytes_max:
            self._bytes += size
            self._free.setdefault(size, []).append(buffer)
