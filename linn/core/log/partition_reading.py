"""Reading of a partition: committed records, cut to what a reader asks for and in a format that it accepts.

Law: readers see only records below the stable offset, and none of an aborted transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeVar

from linn.core.batch.batch import Format, RecordBatch
from linn.core.batch.builder import slice_batch
from linn.core.batch.format import NATIVE_ONLY, RECORDS_MAX, Formats
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    BatchMalformed,
    FormatUnknown,
    LimitExceeded,
    LogCorrupt,
    LogTruncated,
    OffsetOutOfRange,
)
from linn.core.log.mark import Mark
from linn.core.log.storage import READ_BATCHES_MAX, PartitionId, PartitionLog, StoredBatch
from linn.core.log.storage_stats import StorageStats
from linn.core.log.transactions import LogTransactions

logger = logging.getLogger("linn.storage")

AnyBatch = TypeVar("AnyBatch", RecordBatch, RecordBatch | StoredBatch)


def _slices(batch: RecordBatch, first: int, end: int) -> list[RecordBatch]:
    """The slice that covers the offsets [first, end), or none if it would hold no record. Raises BatchMalformed."""
    return [slice_batch(batch, first, end)] if batch.index_at(first) < batch.index_at(end) else []


def _encodable(batch: RecordBatch) -> RecordBatch:
    """The first records of a native batch, as many as can be encoded in another format without a pause.

    Returns the whole batch if it has another format, or can't be decoded.
    """
    if batch.format:
        return batch
    try:
        opened = RecordBatch(batch.message)
        first = next(opened.body().pieces(range(batch.count), RECORDS_MAX))
        return batch if len(first) == batch.count else slice_batch(opened, batch.base_offset, batch.offset(len(first)))
    except (BatchMalformed, LimitExceeded):
        return batch


class ReadablePartition:
    """The reading half of `Partition`, which sets the attributes."""

    on_damaged: Callable[[], None] | None = None
    """Called when a batch of the log is found damaged."""
    id: PartitionId
    log: PartitionLog
    committed: Mark
    transactions: LogTransactions
    _storage: StorageStats
    _formats: Formats
    _stable_end: int | None
    """The offset of the first batch of an open transaction; None if there is none."""

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are on all in-sync replicas."""
        return self.committed.offset

    @property
    def stable_offset(self) -> int:
        """The offset below which no transaction is open: readers see records up to it."""
        offset, end = self.committed.offset, self._stable_end
        return offset if end is None or offset < end else end

    def check_position(self, offset: int, leader_epoch: int) -> None:
        """Check that the record before `offset` is the one that the reader read, appended in `leader_epoch`.

        `leader_epoch` 0: unknown. Raises LogTruncated with the offset where the log and the reader's records diverge.
        """
        if leader_epoch:
            end = self.log.facts.epochs.end_of(leader_epoch, self.log.bounds()[1])
            if end < offset:
                raise LogTruncated(
                    f"{self.id} lost the records from offset {end} on that leader epoch {leader_epoch} had appended, "
                    "and goes on with others there",
                    partition=self.id.index,
                    offset=end,
                )

    def _visible(self, batches: list[AnyBatch]) -> list[AnyBatch]:
        """Select the batches that are visible to readers, among batches below the stable offset."""
        transactions = self.transactions
        if not transactions.markers:
            return batches
        return [batch for batch in batches if not transactions.hides(batch)]

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self.log.bounds()[0]

    def readable_count(self, first: int = 0, end: int | None = None) -> int:
        """The number of records that readers get between offsets `first` and `end`; see `OffsetTally`."""
        stable = self.stable_offset
        first, end = max(first, self.start_offset), stable if end is None else min(end, stable)
        return end - first - self.transactions.hidden.count(first, end) if first < end else 0

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read committed batches from the one that holds `offset` on, without records before `offset`.

        As many as fit into `bytes_max`, at most READ_BATCHES_MAX, and at least one. Empty if there are no records from
        `offset` to the stable offset. Raises OffsetOutOfRange, LogCorrupt.
        """
        while stored := await self._read(offset, bytes_max):
            behind = stored[-1].end_offset
            batches = self._visible(stored)
            if batches and batches[0].base_offset < offset:
                batches[:1] = self._cut(batches[0], offset, batches[0].end_offset)
            if batches:
                return batches
            offset = behind  # The whole batch is hidden, or ends with a gap that begins before `offset`.
        return ()

    async def _read(self, offset: int, bytes_max: int) -> list[RecordBatch]:
        """Read committed batches as they are stored. Raises OffsetOutOfRange, LogCorrupt."""
        stable = self.stable_offset
        if offset >= stable:
            if offset > stable:
                raise OffsetOutOfRange(f"offset {offset} of {self.id} is beyond the stable offset {stable}")
            return []
        batches = list(await self.read_log(offset, bytes_max))[:READ_BATCHES_MAX]
        while batches and batches[-1].base_offset >= stable:
            batches.pop()
        return batches

    async def read_log(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read the log, and tell of damage. Raises as `PartitionLog.read`."""
        try:
            return await self.log.read(offset, bytes_max)
        except LogCorrupt:
            if self.on_damaged is not None:
                self.on_damaged()
            raise

    async def read_whole(self, offset: int, bytes_max: int) -> list[RecordBatch]:
        """Read whole committed batches from the one that holds `offset`, in views of their own.

        Empty if there are no records from `offset` to the stable offset. Raises OffsetOutOfRange, LogCorrupt.
        """
        kept = self._storage.cut_batches.at(self, offset)
        if kept is not None and self.start_offset <= offset < self.stable_offset:
            return [kept]
        while stored := await self._read(offset, bytes_max):
            if batches := self._visible(stored):
                return [RecordBatch(batch.message) for batch in batches]
            offset = stored[-1].end_offset
        return []

    def keep_cut(self, whole: RecordBatch) -> None:
        """Cache a batch of `read_whole` of which another part will be read, so that it is not decoded again."""
        self._storage.cut_batches.keep(self, whole)

    def _cut(self, batch: RecordBatch, first: int, end: int) -> list[RecordBatch]:
        """Cut the offsets [first, end) out of a batch; empty if they are all a gap. Raises BatchMalformed."""
        # A separate view: decoded columns must not stay with a batch that an engine keeps in memory.
        whole = self.native(RecordBatch(batch.message))
        parts = _slices(whole, first, end)
        self._storage.cut_batches.keep(self, whole)
        return parts

    async def read_range(
        self, first: int, end: int, bytes_max: int, accepts: Sequence[int] = NATIVE_ONLY
    ) -> Sequence[RecordBatch]:
        """Read batches with exactly the records from `first` up to `end`, or fewer if `bytes_max` is reached.

        Empty if there are no records, as in a gap. Batches in a format that is not among `accepts` are
        translated.

        Raises OffsetOutOfRange, LogCorrupt, FormatUnknown; BatchMalformed if the first batch has to be cut and can't be
        read.
        """
        whole = self._storage.cut_batches.at(self, first)
        if whole is not None and self.start_offset <= first < end <= self.stable_offset:
            return self._accepted(_slices(whole, first, min(end, whole.end_offset)), accepts, bytes_max)
        batches = list(await self.read(first, bytes_max))
        while batches and batches[-1].base_offset >= end:
            batches.pop()
        if batches and batches[-1].end_offset > end:
            last = batches.pop()
            try:
                batches += self._cut(last, last.base_offset, end)
            except (BatchMalformed, FormatUnknown):
                if not batches:
                    raise
        return self._accepted(batches, accepts, bytes_max)

    def _accepted(
        self, batches: Sequence[RecordBatch], accepts: Sequence[int], bytes_max: int
    ) -> Sequence[RecordBatch]:
        """Translate batches into a format that the reader accepts, as many as fit into `bytes_max`, at least one.

        Raises FormatUnknown.
        """
        if all(batch.format in accepts for batch in batches):
            return batches
        found: list[RecordBatch] = []
        for batch in batches:
            whole = batch
            try:
                if batch.format not in accepts:
                    batch = _encodable(whole)
                made = self.accepted(batch, accepts)
            except FormatUnknown:
                if not found:
                    raise
                break
            bytes_max -= made.size
            if found and bytes_max < 0:
                break
            found.append(made)
            if batch is not whole:
                break  # Later batches come with the next read.
        return found

    def accepted(self, batch: RecordBatch, accepts: Sequence[int]) -> RecordBatch:
        """A batch of this partition in a format that a reader accepts; unchanged if it can't be translated.

        Raises FormatUnknown.
        """
        if batch.format in accepts:
            return batch
        try:
            return self._formats.translated(self.id, batch, accepts[0])
        except BatchMalformed as error:
            text = "%(partition)s: a batch of %(count)d records is handed over as it is: %(error)s"
            logger.warning(text, {"partition": str(self.id), "count": batch.count} | log_fields(error))
            return batch

    def native(self, batch: RecordBatch) -> RecordBatch:
        """A batch of this partition in linn's own format. Raises FormatUnknown, BatchMalformed."""
        return self._formats.translated(self.id, batch, Format.NATIVE) if batch.format else batch

    async def batch_at(self, offset: int) -> RecordBatch:
        """The whole batch that holds a committed offset. Raises OffsetOutOfRange, LogCorrupt."""
        return (await self.read_log(offset, 1))[0]

    async def read_stored(
        self, first: int, end: int, bytes_max: int, accepts: Sequence[int] = NATIVE_ONLY
    ) -> Sequence[RecordBatch | StoredBatch]:
        """Read as `read_range` does; batches that need no cut or translation may stay in their files, with only their
        stamps checked.
        """
        found = self.read_nowait(first, end, bytes_max, accepts)
        return found or await self.read_range(first, end, bytes_max, accepts)

    def read_nowait(
        self, first: int, end: int, bytes_max: int, accepts: Sequence[int] = NATIVE_ONLY
    ) -> Sequence[RecordBatch | StoredBatch]:
        """Read as `read_stored` does, without waiting; empty if impossible. Raises LogClosed, StorageError."""
        batches = list(self.log.read_nowait(first, bytes_max))[:READ_BATCHES_MAX]
        end = min(end, self.stable_offset)
        while batches and batches[-1].end_offset > end:
            batches.pop()
        batches = self._visible(batches)
        if not all(batch.format in accepts for batch in batches):
            return list(takewhile(lambda batch: batch.format in accepts, batches))
        return batches
