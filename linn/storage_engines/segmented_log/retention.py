"""The choice of segments that retention drops. Pure: it uses numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Droppable(Protocol):
    """A part of a log that can only be dropped as a whole."""

    end_offset: int
    size_bytes: int
    last_append_ms: int


def count_to_drop(
    parts: Sequence[Droppable],
    now_ms: int,
    keep: int | None = None,
    *,
    age_ms: int | None,
    bytes_max: int | None,
    before: int | None,
    dead_bytes: int = 0,
) -> int:
    """The number of `parts`, oldest first, that exceed a bound. Parts that end beyond `keep` are kept.

    Age counts from the last append, by the broker's clock. The clock may have been wrong at some appends. The age of a
    part with a time in the future is unknown, but later parts limit it: no part is older than an earlier one.
    `dead_bytes` of the first part lie before the start of the log and do not count against `bytes_max`.
    """
    total = sum(part.size_bytes for part in parts) - dead_bytes
    count, newest_ms = 0, -1
    for number, part in enumerate(parts, 1):
        if keep is not None and part.end_offset > keep:
            break
        is_in_future = age_ms is not None and part.last_append_ms > now_ms
        if not is_in_future:
            newest_ms = max(newest_ms, part.last_append_ms)
        old = age_ms is not None and not is_in_future and newest_ms < now_ms - age_ms
        over = bytes_max is not None and total > bytes_max
        below = before is not None and part.end_offset <= before
        if old or over or below:
            count = number
        elif not is_in_future:
            break
        total -= part.size_bytes - dead_bytes
        dead_bytes = 0
    return count
