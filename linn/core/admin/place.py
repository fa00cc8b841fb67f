"""The place in a partition that a request names: `to`, an offset, or a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linn.core.errors.tree import ConfigError
from linn.core.log.partition import Partition


async def place_of(partition: Partition, arguments: Mapping[str, Any]) -> int:
    """The offset that `to`, `offset` or `timestamp_ms` names, moved to where there are records. Raises ConfigError."""
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
