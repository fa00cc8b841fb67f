"""Ranges of offsets, of which each is read by one Spark task. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` to `end` (exclusive) of one partition of the topic with this id."""

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


Task = tuple[OffsetRange, ...]
"""The ranges that one task reads, one after the other."""
TASK_RECORDS_MIN = 1_000
"""Ranges share a task up to so many records: a task costs tens of milliseconds, as much as thousands of small ones."""


def tasks(ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None) -> list[Task]:
    """Return the tasks that read ranges: small ranges share one, unless a number says how many tasks there are."""
    if partitions_min is not None or records_max is not None:
        return [(piece,) for piece in split(ranges, partitions_min, records_max)]
    found: list[Task] = []
    size = TASK_RECORDS_MIN
    for each in split(ranges, None, None):
        if size + len(each) <= TASK_RECORDS_MIN:
            found[-1] = *found[-1], each
            size += len(each)
        else:
            found.append((each,))
            size = len(each)
    return found


def split(ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None) -> list[OffsetRange]:
    """Split ranges so that there are about `partitions_min` of them, and none is longer than `records_max`.

    Empty ranges are left out. Neither number makes ranges larger.
    """
    found = [each for each in ranges if len(each) > 0]
    total = sum(map(len, found))
    pieces: list[OffsetRange] = []
    for each in found:
        parts = 1
        if partitions_min is not None and partitions_min > len(found):
            parts = max(1, round(partitions_min * len(each) / total))
        if records_max is not None:
            parts = max(parts, -(-len(each) // records_max))
        pieces += _cut(each, min(parts, len(each)))
    return pieces


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into parts of nearly equal length."""
    cuts = [whole.start + len(whole) * part // parts for part in range(parts + 1)]
    return [replace(whole, start=cuts[part], end=cuts[part + 1]) for part in range(parts)]
