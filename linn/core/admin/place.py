"""The place in a partition that a request names: `to`, an offset, or a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from linn.core.errors.tree import ConfigError, OffsetOutOfRange
from linn.core.log.partition import Partition


def check_offset(offset: int, partitions: Iterable[Partition]) -> None:
    """Check that an offset is not beyond the end of all of these partitions. Raises OffsetOutOfRange."""
    known = list(partitions)
    if known and all(offset > partition.high_watermark for partition in known):
        of = str(known[0].id) if len(known) == 1 else f"any partition of {known[0].id.topic}"
        raise OffsetOutOfRange(f"offset {offset} is beyond the end of {of}")


async def place_of(partition: Partition, arguments: Mapping[str, Any]) -> int:
    """The offset that `to`, `offset` or `timestamp_ms` names, moved to where there are records; see `check_offset`.

    Raises ConfigError.
    """
    start, end = partition.start_offset, partition.stable_offset
    named = [(name, arguments[name]) for name in ("to", "offset", "timestamp_ms") if name in arguments]
    if named == [("to", "earliest")]:
        return start
    if named == [("to", "latest")]:
        return end
    if len(named) == 1 and type(named[0][1]) is int:
        value: int = named[0][1]
        if named[0][0] == "offset":
            return max(start, min(value, end))
        if named[0][0] == "timestamp_ms":
            return min(await partition.log.offset_at(value), end)
    raise ConfigError('a place is exactly one of: to ("earliest" or "latest"), offset, timestamp_ms')
