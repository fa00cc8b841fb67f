"""Reading scattered records of a partition, which keep their offsets.

Law: a batch that is picked from covers the offsets up to the next record that is wanted, so that a reader who settles
one batch after the other settles one range. A batch of which every record is wanted is passed on as it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.batch.batch import OFFSET_SPAN_MAX, RecordBatch
from linn.core.batch.builder import pick_batch
from linn.core.batch.format import NATIVE_ONLY
from linn.core.errors.tree import BatchMalformed, FormatUnknown, OffsetOutOfRange, StorageError
from linn.core.log.partition import Partition

Range = tuple[int, int]
"""(first, end)."""
AHEAD_BYTES_MAX = 1 << 18
"""Bytes that are read at once while each batch has a record that is wanted; a read of scattered batches begins with
one batch."""
AHEAD_BYTES_MIN = 1 << 12


async def read_picked(
    partition: Partition, ranges: Sequence[Range], bytes_max: int, accepts: Sequence[int] = NATIVE_ONLY
) -> list[RecordBatch]:
    """Read batches with exactly the records of ascending ranges, or fewer if `bytes_max` is reached; at least one.

    Empty if none of them has a record. A batch that has to be picked from is translated into linn's own format.

    Raises StorageError, OffsetOutOfRange, FormatUnknown, BatchMalformed: the first record can't be read. Where a later
    one can't, the read ends before it.
    """
    picked: list[RecordBatch] = []
    wanted, ahead = list(reversed(ranges)), AHEAD_BYTES_MIN
    batches: list[RecordBatch] = []
    while wanted and bytes_max > 0:
        offset = wanted[-1][0]
        batches = [batch for batch in batches if batch.end_offset > offset]
        if not batches:
            try:
                batches = await partition.read_whole(offset, ahead)
            except (StorageError, OffsetOutOfRange):
                if not picked:
                    raise
                break
            ahead = min(4 * ahead, AHEAD_BYTES_MAX)
            if not batches:
                break
        batch = batches.pop(0)
        if batch.base_offset > offset and not _pass(wanted, batch.base_offset):
            continue
        try:
            mine = _taken(wanted, batch.end_offset)
            part = _part(partition, batch, mine, wanted[-1][0] if wanted else 0, accepts)
        except (BatchMalformed, FormatUnknown):
            if not picked:
                raise
            break
        if part is not None:
            bytes_max -= part.size
            picked.append(part)
    return picked


def _pass(wanted: list[Range], offset: int) -> bool:
    """Drop wanted offsets below a given one, where no batch is visible; returns whether any are left."""
    while wanted and wanted[-1][0] < offset:
        end = wanted.pop()[1]
        if end > offset:
            wanted.append((offset, end))
    return bool(wanted)


def _taken(wanted: list[Range], end: int) -> list[Range]:
    """Take the ranges below an offset."""
    mine: list[Range] = []
    while wanted and wanted[-1][0] < end:
        first, stop = wanted.pop()
        mine.append((first, min(stop, end)))
        if stop > end:
            wanted.append((end, stop))
    return mine


def _part(
    partition: Partition,
    batch: RecordBatch,
    ranges: Sequence[Range],
    next_wanted: int,
    accepts: Sequence[int],
) -> RecordBatch | None:
    """The records of a batch in these ranges; None if there is none. Raises BatchMalformed, FormatUnknown."""
    indexes: list[int] = []
    base, is_dense = batch.base_offset, batch.offset_deltas is None
    for first, end in ranges:
        indexes += range(first - base, end - base) if is_dense else range(batch.index_at(first), batch.index_at(end))
    if not indexes:
        return None
    if len(indexes) == batch.count:
        return partition.accepted(batch, accepts)
    first, last = batch.offset(indexes[0]), batch.offset(indexes[-1])
    end = min(max(next_wanted, last + 1), first + OFFSET_SPAN_MAX)
    native = partition.native(batch)
    partition.keep_cut(native)
    return partition.accepted(pick_batch(native, indexes, range(first, end)), accepts)
