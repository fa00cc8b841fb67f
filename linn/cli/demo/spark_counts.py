"""Counts of Spark's output from the departures: Parquet files by origin, and late departures by origin and hour.

Law: the expected counts come from the rows of the file, and share no code with the pipelines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from linn.cli.demo.flights import LATE_MINUTES, MISSING, rows
from linn.cli.demo.lake import Written
from linn.cli.demo.tally import Count, compare

YEAR = 2013


@dataclass
class Expected:
    """Departures of the file."""

    departures: set[Written] = field(default_factory=set)
    late: Counter[str] = field(default_factory=Counter)
    """Late departures by key: `JFK 2013-01-31 18:00`."""


def expected_of_file(limit: int) -> Expected:
    """Count the first `limit` flights of the file. Raises FlightsMissing."""
    found = Expected()
    for number, row in enumerate(rows(limit)):
        if row.dep_delay == MISSING:
            continue
        found.departures.add(Written(row.origin, number))
        if float(row.dep_delay) >= LATE_MINUTES:
            day = f"{YEAR}-{int(row.month):02}-{int(row.day):02}"
            found.late[f"{row.origin} {day} {int(row.sched_dep_time) // 100:02}:00"] += 1
    return found


@dataclass
class SparkOutcome:
    """Output of both pipelines."""

    written: list[Written] = field(default_factory=list)
    updates: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Key and count by the offset of the message."""
    unsettled: int = 0
    """Records that are left in the queue of counts."""
    has_restarted: bool = False
    """Whether the pipelines ran again after the kill, and had written everything."""

    def latest(self) -> tuple[Counter[str], int]:
        """Return the last count of each key, and the number of messages whose count was not above the previous one.

        Counts only grow, so that a micro-batch which is written twice shows.
        """
        last: Counter[str] = Counter()
        not_higher = 0
        for _, (key, late) in sorted(self.updates.items()):
            not_higher += late <= last[key]
            last[key] = late
        return last, not_higher


def counts_of_spark(outcome: SparkOutcome, expected: Expected) -> list[Count]:
    """Return the counts of the final table."""
    distinct = set(outcome.written)
    last, not_higher = outcome.latest()
    by_origin = [Counter(row.origin for row in rows) for rows in (expected.departures, outcome.written)]
    off = sum(last[key] != expected.late[key] for key in {*last, *expected.late})
    return [
        Count("Spark: driver killed, started again and done", 1, int(outcome.has_restarted)),
        Count("Parquet: departures", len(expected.departures), len(distinct)),
        *compare("Parquet: departures from", *by_origin),
        Count("Parquet: departures written more than once", 0, len(outcome.written) - len(distinct)),
        Count("Parquet: departures missing, or not in the file", 0, len(distinct ^ expected.departures)),
        Count("late by hour: origins and hours", len(expected.late), len(last)),
        Count("late by hour: late departures", expected.late.total(), last.total()),
        Count("late by hour: counts that are off", 0, off),
        Count("late by hour: changes that came twice", 0, not_higher),
        Count("late by hour: unsettled in the end", 0, outcome.unsettled),
    ]
