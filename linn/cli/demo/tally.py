"""Counts of flights, taken twice: from the rows of the file, and from the messages of the broker.

Law: the two ways share no code but this class, so that a slip in making or reading events shows as a difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from linn.cli.demo.flights import LATE_MINUTES, MISSING, Flight, Row


@dataclass
class Tally:
    """Numbers of flights by category."""

    departed: int = 0
    cancelled: int = 0
    departed_by_origin: Counter[str] = field(default_factory=Counter)
    late_by_origin: Counter[str] = field(default_factory=Counter)
    departed_by_carrier: Counter[str] = field(default_factory=Counter)
    late_numbers: set[int] = field(default_factory=set)
    """Row numbers of the late departures."""

    @property
    def total(self) -> int:
        return self.departed + self.cancelled

    def add_row(self, number: int, row: Row) -> None:
        """Count a row of the file."""
        if row.dep_delay == MISSING:
            self.cancelled += 1
        else:
            self._departed(number, row.origin, row.carrier, float(row.dep_delay) >= LATE_MINUTES)

    def add_event(self, flight: Flight) -> None:
        """Count a message of the broker."""
        if flight.departed is None:
            self.cancelled += 1
        else:
            self._departed(flight.number, flight.origin, flight.carrier, flight.late)

    def _departed(self, number: int, origin: str, carrier: str, late: bool) -> None:
        self.departed += 1
        self.departed_by_origin[origin] += 1
        self.departed_by_carrier[carrier] += 1
        if late:
            self.late_by_origin[origin] += 1
            self.late_numbers.add(number)


class Count(NamedTuple):
    """Line of the final table."""

    what: str
    expected: int
    """Count in the file, or 0 for errors."""
    found: int

    @property
    def right(self) -> bool:
        return self.expected == self.found


def compare(prefix: str, expected: Counter[str], found: Counter[str]) -> list[Count]:
    """Compare counters name by name."""
    return [Count(f"{prefix} {name}", expected[name], found[name]) for name in sorted({*expected, *found})]
