"""The records that are published, and the proof that they all came back.

Laws: every record has its number in its first eight bytes; the same records serve for all systems; making them costs
nothing while the clock runs.
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
    """What was consumed is not what was confirmed."""


class Cargo:
    """Records of one size: a number, and bytes that do not compress."""

    def __init__(self, record_bytes: int) -> None:
        self.record_bytes = record_bytes
        noise = Random(record_bytes)
        rest = record_bytes - _NUMBER.size
        self.values = [_NUMBER.pack(number) + noise.randbytes(rest) for number in range(COUNT)]

    def value(self, position: int) -> bytes:
        """The record at a position of the endless row."""
        return self.values[position % COUNT]


class Supply:
    """Records to publish, until the time is over or there are enough. The time begins with the first one."""

    def __init__(self, cargo: Cargo, seconds: float, records_max: int) -> None:
        self.taken = 0
        self._cargo = cargo
        self._seconds = seconds
        self._records_max = records_max

    def singles(self) -> Iterator[bytes]:
        """One by one."""
        for chunk in self.chunks(1):
            yield chunk[0]

    def chunks(self, size: int) -> Iterator[list[bytes]]:
        """So many at a time. `size` divides COUNT."""
        assert COUNT % size == 0, "a chunk does not wrap"
        ends_at = time.perf_counter() + self._seconds
        while time.perf_counter() < ends_at and self.taken + size <= self._records_max:
            first = self.taken % COUNT
            self.taken += size
            yield self._cargo.values[first : first + size]


class Tally:
    """Counts what is consumed of so many records, and compares it with what was published, in order."""

    def __init__(self, cargo: Cargo, expected: int) -> None:
        self.count = 0
        self.expected = expected
        self._cargo = cargo

    @property
    def is_full(self) -> bool:
        """All are there."""
        return self.count >= self.expected

    @property
    def left(self) -> int:
        """How many are still to come."""
        return max(0, self.expected - self.count)

    def add(self, values: Sequence[bytes]) -> None:
        """Records that came one after another; the first and the last of them, and the size of all, are looked at.

        Raises RecordsLost.
        """
        if not values:
            return
        ends = (self.count, values[0]), (self.count + len(values) - 1, values[-1])
        for position, value in ends:
            if bytes(value) != self._cargo.value(position):
                raise RecordsLost(f"record {position} of {self.expected} is another than the one that was published")
        if sum(map(len, values)) != len(values) * self._cargo.record_bytes:
            raise RecordsLost(f"after {self.count} of {self.expected} records there is one of the wrong size")
        self.count += len(values)

    def check(self) -> None:
        """Raises RecordsLost unless all are there, and no more."""
        if self.count != self.expected:
            raise RecordsLost(f"{self.expected} records were confirmed and {self.count} were consumed")
