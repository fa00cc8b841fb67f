"""Ranges of offsets; a Spark task reads one or more of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor
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
"""Records up to which ranges share a task: a task costs tens of milliseconds, as much as thousands of small records."""


def tasks(ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None) -> list[Task]:
    """Return the tasks that read ranges: small ranges share a task, unless a number of tasks is given."""
    if partitions_min is not None or records_max is not None:
        return [(piece,) for piece in split(ranges, partitions_min, records_max)]
    found: list[Task] = []
    size = TASK_RECORDS_MIN
    for part in split(ranges, None, None):
        if size + len(part) <= TASK_RECORDS_MIN:
            found[-1] = *found[-1], part
            size += len(part)
        else:
            found.append((part,))
            size = len(part)
    return found


def split(ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None) -> list[OffsetRange]:
    """Split ranges so that no range exceeds `records_max`, and there are about `partitions_min` ranges.

    Empty ranges are left out. Ranges are never joined. The cuts are the same as in Spark's Kafka source.
    """
    found = [part for part in ranges if len(part) > 0]
    if records_max is not None:
        found = [piece for part in found for piece in _cut(part, -(-len(part) // records_max))]
    if partitions_min is None or partitions_min <= len(found):
        return found
    total = sum(map(len, found))
    small = [part for part in found if _parts(part, total, partitions_min) == 1]
    # Small ranges stay whole, and the others get the remaining parts: otherwise there would be too few parts.
    rest, left = total - sum(map(len, small)), max(1, partitions_min - len(small))
    whole = {*small}
    return [piece for part in found for piece in _cut(part, 1 if part in whole else _parts(part, rest, left))]


def _parts(part: OffsetRange, total: int, count: int) -> int:
    """Return the share of `count` parts that a range gets by its length."""
    return max(1, floor(len(part) / total * count + 0.5))


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into parts of nearly equal length, the shorter ones first; none is empty."""
    parts = min(parts, len(whole))
    length, longer = divmod(len(whole), parts)
    cuts = [whole.start]
    for part in range(parts):
        cuts.append(cuts[-1] + length + (part >= parts - longer))
    return [replace(whole, start=start, end=end) for start, end in pairwise(cuts)]
