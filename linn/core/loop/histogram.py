"""A histogram: the number of values below each of several bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

SECONDS: tuple[float, ...] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Bounds in seconds, from a write into a disk's cache to a disk that hangs."""


class Histogram:
    """Counts of observed values between fixed bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """Make an empty histogram. `bounds` ascend; a value equal to a bound counts as below it."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """Number of values between each bound and the one before; the last: above all bounds."""
        self.sum = 0.0

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """(bound, number of values up to it), infinity last."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            yield bound, total
