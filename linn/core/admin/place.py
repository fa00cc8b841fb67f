"""A place in a partition, as requests name it: `to`, an offset, or a time."""

from __future__ import annotations

from collections.abc import Iterable

from linn.core.errors.tree import ConfigError, OffsetOutOfRange
from linn.core.log.partition import Partition
from linn.verbs import Placed


def check_offset(offset: int, partitions: Iterable[Partition]) -> None:
    """Check that an offset is not beyond the end of every one of these partitions. Raises OffsetOutOfRange."""
    known = list(partitions)
    if known and all(offset > partition.high_watermark for partition in known):
        of = str(known[0].id) if len(known) == 1 else f"any partition of {known[0].id.topic}"
        raise OffsetOutOfRange(f"offset {offset} is beyond the end of {of}")


async def place_of(partition: Partition, asked: Placed) -> int:
    """The offset that `to`, `offset` or `timestamp_ms` names, moved into the range of existing records; see
    `check_offset`.

    Raises ConfigError.
    """
    start, end = partition.start_offset, partition.stable_offset
    match asked.to, asked.offset, asked.timestamp_ms:
        case "earliest", None, None:
            return start
        case "latest", None, None:
            return end
        case None, int(offset), None:
            return max(start, min(offset, end))
        case None, None, int(timestamp_ms):
            return min(await partition.log.offset_at(timestamp_ms), end)
    raise ConfigError('a place is exactly one of: to ("earliest" or "latest"), offset, timestamp_ms')
