"""A running sum of the bytes that a topic's partitions hold: a publish looks at those that have changed, not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class HeldBytes:
    """The sum over all partitions."""

    __slots__ = ("_bytes_of", "_changed", "_known", "_total")

    def __init__(self, bytes_of: Callable[[int], int]) -> None:
        """`bytes_of`: what the partition of an index holds now."""
        self._changed: dict[int, None] = {}
        self._bytes_of = bytes_of
        self._known: dict[int, int] = {}
        self._total = 0

    def changed(self, indexes: Iterable[int]) -> None:
        """Record that these partitions may hold more or less than before."""
        self._changed.update(dict.fromkeys(indexes))

    def total(self) -> int:
        """The bytes that are held now."""
        for index in self._changed:
            held = self._bytes_of(index)
            self._total += held - self._known.get(index, 0)
            self._known[index] = held
        self._changed.clear()
        return self._total
