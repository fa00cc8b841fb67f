"""Records to publish, and the proof that they all came back.

Laws: every record has its number in its first eight bytes; the same records serve for all systems; while a clock runs
nothing is done per record but what a client's user has to do. What came back is compared afterwards, all of it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from random import Random

COUNT = 10_000
"""Different records; after the last one the first one follows."""
_NUMBER = struct.Struct("<Q")


class RecordsLost(Exception):
    """The consumed records differ from the confirmed ones."""


class Cargo:
    """Records of one size: a number, and bytes that do not compress."""

    def __init__(self, record_bytes: int) -> None:
        self.record_bytes = record_bytes
        noise = Random(record_bytes)
        rest = record_bytes - _NUMBER.size
        self.values = [_NUMBER.pack(number) + noise.randbytes(rest) for number in range(COUNT)]

    def check(self, received: Sequence[bytes], expected: int) -> None:
        """Compare what was consumed with what was published, in order. Raises RecordsLost."""
        if len(received) != expected:
            raise RecordsLost(f"{expected} records were confirmed and {len(received)} were consumed")
        for first in range(0, expected, COUNT):
            part = list(received[first : first + COUNT])
            published = self.values[: len(part)]
            if part != published:
                index = next(index for index, value in enumerate(part) if value != published[index])
                raise RecordsLost(f"record {first + index} of {expected} is not the one that was published there")


class Supply:
    """Records to publish, until the time is over or there are enough. The time begins with the first one."""

    def __init__(self, cargo: Cargo, seconds: float, records_max: int) -> None:
        self.cargo = cargo
        self.taken = 0
        self._seconds = seconds
        self._records_max = records_max

    def singles(self) -> Iterator[bytes]:
        """Yield one by one."""
        for chunk in self.chunks(1):
            yield chunk[0]

    def chunks(self, size: int) -> Iterator[list[bytes]]:
        """Yield `size` at a time, which divides COUNT."""
        for first, end in self.spans(size):
            yield self.cargo.values[first:end]

    def spans(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the places of `size` records in `cargo.values`; for clients that want them in a form of their own."""
        assert COUNT % size == 0, "a span does not wrap"
        ends_at = time.perf_counter() + self._seconds
        while time.perf_counter() < ends_at and self.taken + size <= self._records_max:
            first = self.taken % COUNT
            self.taken += size
            yield first, first + size
