"""Thinning: a sealed segment is written anew with the few records that are still needed, at their offsets.

Laws: the new segment covers the offsets of the former one, and each of its batches but the last ends with a record.
It has the last record of each leader epoch, so that the epochs are still a function of the batches.
The former file stays in place until the new one is on stable storage, and one takes the place of the other by a rename:
after a crash the log has either. An index file never stands beside a segment that it does not describe.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

import trio

from linn.api import (
    BatchError,
    Disk,
    DiskFull,
    LogCorrupt,
    Needed,
    RecordBatch,
    Steps,
    StorageError,
    SyncFailed,
    can_be_thinned,
    log_fields,
    thin_steps,
)
from linn.storage_engines.segmented_log.segment import SCAN_BYTES, Segment

logger = logging.getLogger("linn.storage")

NEEDED_SHARE = 8
"""A segment is written anew when less than 1/n of its records is needed."""


def is_worth_it(segment: Segment, needed: Needed) -> bool:
    """Whether a sealed segment is to be thinned; if so, it is again only when far less of it is needed."""
    wanted = 1 + sum([end - first for first, end in needed(segment.base_offset, segment.end_offset)])
    known = segment.needed_max if segment.needed_max >= 0 else segment.end_offset - segment.base_offset
    if not segment.is_sealed or NEEDED_SHARE * wanted > known:
        return False
    segment.needed_max = wanted
    return True


async def thin_copy(
    disk: Disk,
    segment: Segment,
    needed: Needed,
    commit: Callable[[], Awaitable[None]],
    epochs: Iterable[int],
    index_interval_bytes: int,
) -> Segment | None:
    """Write the needed records of a sealed segment to a temporary file, in turns; synced and committed on return.

    `epochs`: their first offsets. None: the segment has to stay as it is, because it is damaged, has transactions or
    other formats, or would not be much smaller; or the disk is full.

    Raises SyncFailed, and what `commit` raises.
    """
    ends = {segment.end_offset, *epochs}
    copy = Segment(disk, segment.path.removesuffix(".log"), segment.base_offset, index_interval_bytes)
    copy.path = f"{segment.path}.tmp"
    is_made = False
    try:
        if await _try_to_write(disk, copy, segment, needed, ends):
            await commit()
            is_made = True
    finally:
        copy.shut()
        if not is_made:
            copy.discard()
    return copy if is_made else None


async def _try_to_write(disk: Disk, copy: Segment, segment: Segment, needed: Needed, ends: Collection[int]) -> bool:
    try:
        disk.unlink(copy.path)
        copy.create_file()
        if await _write(copy, segment, needed, ends):
            copy.facts = await segment.facts_of_index()
            await copy.sync()
            return True
    except DiskFull:
        segment.needed_max = -1  # To be tried again.
    except SyncFailed:
        raise
    except (BatchError, LogCorrupt, StorageError) as error:
        if not segment.retired:  # It was not dropped meanwhile.
            text = "%(file)s keeps records that are not needed: %(error)s"
            logger.warning(text, {"file": segment.path} | log_fields(error))
    return False


async def _write(copy: Segment, segment: Segment, needed: Needed, ends: Collection[int]) -> bool:
    """Write the copy; whether it is whole, and smaller by half."""
    offset, copy.needed_max = segment.base_offset, 0
    while offset < segment.end_offset:
        batches = await segment.read(offset, SCAN_BYTES, at_least_one=True)
        for batch in batches:
            if not can_be_thinned(batch):
                return False
            spans, end = list(needed(batch.base_offset, batch.end_offset)), None
            if batch.end_offset in ends:
                # Its last record stays, so that a batch ends there: no other would cover the offsets up to it.
                last, end = batch.offset(batch.count - 1), batch.end_offset
                spans = [*[(first, min(stop, last)) for first, stop in spans if first < last], (last, last + 1)]
            part = await _in_turns(thin_steps(batch, spans, copy.end_offset, end))
            if part is not None:
                copy.append_copies([part])
                copy.needed_max += part.count
        offset = batches[-1].end_offset
        if 2 * copy.size_bytes > segment.size_bytes:
            return False
    return True


async def _in_turns(steps: Steps[RecordBatch | None]) -> RecordBatch | None:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            part: RecordBatch | None = end.value
            return part
        await trio.lowlevel.checkpoint()
