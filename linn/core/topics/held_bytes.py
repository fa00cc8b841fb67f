"""The bytes that a topic holds, which each publish to a topic with a limit asks for."""

from __future__ import annotations

from collections.abc import Callable


class HeldBytes:
    """A running sum of the bytes that a topic's partitions hold. A publish reads only changed partitions."""

    __slots__ = ("_bytes_of", "_known", "_total", "changed")

    def __init__(self, bytes_of: Callable[[int], int]) -> None:
        """`bytes_of`: what the partition of an index holds now."""
        self.changed: dict[int, None] = {}
        """Partitions that may hold more or less than when `total` was last asked."""
        self._bytes_of = bytes_of
        self._known: dict[int, int] = {}
        self._total = 0

    def total(self) -> int:
        """The bytes that are held now."""
        for index in self.changed:
            held = self._bytes_of(index)
            self._total += held - self._known.get(index, 0)
            self._known[index] = held
        self.changed.clear()
        return self._total
