"""Reading selected records of a partition, which keep their offsets.

Laws: a batch without a selected record is skipped without opening its body; selected records keep their offsets. The
batches of one read cover every offset from the end of the caller's last read, so that a reader that continues after
them reads no record twice. The work is done in turns.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from linn.core.batch.batch import OFFSET_SPAN_MAX, Format, RecordBatch
from linn.core.batch.builder import pick_steps, widen_batch
from linn.core.batch.format import NATIVE_ONLY, RECORDS_MAX
from linn.core.batch.steps import Steps
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import BatchMalformed, LimitExceeded
from linn.core.log.partition import Partition
from linn.core.loop.long_work import LongWork

logger = logging.getLogger("linn.stream")


class Selector(Protocol):
    """A predicate that selects records."""

    def choose(self, batch: RecordBatch, start: int, enough: int) -> Steps[Sequence[int]]:
        """Find the ascending indexes of a stored batch's selected records, in short steps.

        Records before `start` are ignored, and the search may stop after `enough` records. The body is not opened.
        Raises BatchMalformed: the batch can't be read.
        """


class Selected(NamedTuple):
    """The result of one read."""

    batches: Sequence[RecordBatch]
    end: int
    """The offset after the last examined record. No selected record lies between the last batch and this offset."""


class Selection:
    """A selector, and the scheduler of its work."""

    def __init__(self, selector: Selector, work: LongWork, accepts: Sequence[int] = NATIVE_ONLY) -> None:
        """`accepts`: the formats that the reader accepts."""
        self._selector = selector
        self._work = work
        self.monotonic = work.monotonic
        self._accepts = accepts

    async def read(
        self, partition: Partition, offset: int, *, covers_from: int, records_max: int, bytes_max: int
    ) -> Selected:
        """Examine the next batches from `offset` on, up to `bytes_max` as stored, and select their records.

        The first batch covers the offsets from `covers_from` on. A batch that can't be decoded is returned whole, or
        skipped if it begins before `offset`.

        Raises OffsetOutOfRange, LogCorrupt, FormatUnknown. Cancellation: a checkpoint.
        """
        if Format.NATIVE not in self._accepts:
            records_max = min(records_max, RECORDS_MAX)
        picked: list[RecordBatch] = []
        task, end, covered = self._work.task(immediate=True), offset, covers_from
        stable = partition.stable_offset
        batches = await partition.read_whole(offset, bytes_max)
        if not batches:
            return Selected((), max(offset, stable))
        for stored in batches:
            if records_max <= 0:
                break
            part, end = await task.run(self._part(partition, stored, offset, covered, records_max))
            if part is not None:
                picked.append(part)
                covered = part.end_offset
                records_max -= part.count
            if end < stored.end_offset:
                partition.keep_cut(stored)
        return Selected(picked, end)

    def _part(
        self, partition: Partition, batch: RecordBatch, first: int, covered: int, records_max: int
    ) -> Steps[_Part]:
        end = batch.end_offset
        try:
            chosen = yield from self._selector.choose(batch, batch.index_at(first), records_max + 1)
            if not chosen:
                return _Part(None, end)
            if len(chosen) > records_max:
                end, chosen = batch.offset(chosen[records_max]), chosen[:records_max]
            if len(chosen) == batch.count:
                part = widen_batch(batch, _covers(covered, end))
            else:
                part = yield from pick_steps(partition.native(batch), chosen, _covers(covered, end))
            return _Part(partition.accepted(part, self._accepts), end)
        except (BatchMalformed, LimitExceeded) as error:
            end = batch.end_offset
            if batch.base_offset >= first:
                return _Part(batch, end)
            about = {"first": first, "end": end} | log_fields(error)
            logger.error("the records from %(first)d to %(end)d can't be read and are passed over: %(error)s", about)
            return _Part(None, end)


class _Part(NamedTuple):
    """The selected part of one batch."""

    batch: RecordBatch | None
    end: int
    """The offset after the examined records."""


def _covers(first: int, end: int) -> range:
    return range(max(first, end - OFFSET_SPAN_MAX), end)
