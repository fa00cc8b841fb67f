"""One partition at work: the only writer of its log, its marks, and the callbacks that wait for them.

Three marks divide a partition, and none of them goes back. `durable` is the offset below which the log's durability
policy calls this broker's records safe: the end of the log, or of the synced part. `committed`, the high watermark,
covers what all in-sync replicas have; on one node it follows `durable`. `stable_offset` lies before the first record of
an open transaction.

Laws: readers see only records below the stable offset. A batch is confirmed when the mark for its acks has passed it:
`durable` for acks of the leader, `committed` for acks of all replicas. One sync at a time runs for a partition and
covers all waiting batches (group commit). A sync that fails is not retried: it ends the broker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, Format, RecordBatch
from linn.core.batch.builder import build_marker, slice_batch
from linn.core.batch.format import NATIVE_ONLY, RECORDS_MAX, Formats
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    BatchMalformed,
    DescriptorsExhausted,
    DiskFull,
    FormatUnknown,
    LimitExceeded,
    LogTruncated,
    OffsetOutOfRange,
    ProducersExceeded,
)
from linn.core.log.mark import Mark
from linn.core.log.producers import CROWDED_IDLE_S, IDLE_S, OFFSET_UNKNOWN, Numbered
from linn.core.log.storage import (
    READ_BATCHES_MAX,
    LogStatistics,
    PartitionId,
    PartitionLog,
    StoredBatch,
)
from linn.core.log.storage_stats import StorageStats
from linn.core.log.transactions import OpenTransaction, Span
from linn.core.log.watchers import Watchers

TIDY_AFTER_BYTES = 64 << 20
"""Bytes appended before the log does its housekeeping, so that little is left for the next start to scan."""
UNTIDIED_BYTES_MAX = 1 << 30
"""Limit over all partitions of a storage; beyond it each does its housekeeping after TIDY_FROM_BYTES, because hundreds
of partitions would leave gigabytes."""
TIDY_FROM_BYTES = 8 << 20
"""Fewest bytes worth a sync of their own: a start scans 8 MiB in a few milliseconds."""
PRODUCERS_MAX = 200_000
"""Limit of the producers that the partitions of a storage remember; each takes up to 500 bytes."""
ENDS_PER_AGE = 8
"""Former ends of a log remembered for retention by age: a record with a wrong time is kept up to 1/n longer."""
SYNC_RETRY_S = 0.5
"""Pause after a sync that lacked a descriptor or disk space."""

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


class Partition:
    """A partition around its `PartitionLog`. `append` is synchronous; its marks call back on confirmation."""

    def __init__(
        self,
        id: PartitionId,
        log: PartitionLog,
        storage: StorageStats,
        clock: Clock,
        spawn: Spawn,
        leader_epoch: int = 0,
        formats: Formats | None = None,
    ) -> None:
        """`formats`: the formats in which clients may publish; None: only linn's own, as in an internal log."""
        self.id = id
        self._formats = formats if formats is not None else Formats()
        self.log = log
        self.leader_epoch = leader_epoch
        """The epoch in which this broker leads the partition; stamped on its appends."""
        # Counts since the log was opened, for the metrics.
        self.appended_batches = 0
        self.appended_bytes = 0
        self.delivered_batches = 0
        self.delivered_records = 0
        self.delivered_bytes = 0
        self.duplicates = 0
        """Repeated batches, which were not stored again."""
        self._storage = storage
        storage.producers += len(log.facts.producers)
        log.facts.producers.opened(clock.monotonic())
        self._clock = clock
        self._spawn = spawn
        capabilities = log.capabilities
        self._confirm_after_sync = capabilities.confirm_after_sync
        self._flush_interval_s = capabilities.flush_interval_s
        self._syncing = False
        self._closed = False
        self._untidied_bytes = 0
        self._opened_at = log.bounds()[1]
        self._appended_hidden = 0
        """Offsets appended since the log was opened that never had a record: markers, and gaps of batches."""
        self._noted_epoch = -1
        self._ends: deque[tuple[float, int]] = deque()
        """Former ends of the log with their monotonic times, back to the first one older than the retention age."""
        self.durable = Mark(self._opened_at, spawn)
        self.committed = Mark(self._opened_at, spawn)
        self.transactions = log.facts.transactions
        self._stable_end: int | None = None
        """The offset of the first batch of an open transaction; None if there is none."""
        self._move_stable_end()
        self.on_void: list[Callable[[Sequence[Span]], None]] = []
        """Callbacks with offsets that readers will never get: markers, and records of aborted transactions."""
        self.watchers = Watchers(spawn)
        """Callbacks for every move of the stable offset."""

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are on all in-sync replicas."""
        return self.committed.offset

    @property
    def stable_offset(self) -> int:
        """The offset below which no transaction is open: readers see records up to it."""
        offset, end = self.committed.offset, self._stable_end
        return offset if end is None or offset < end else end

    def find(self, batch: Numbered, span: int) -> int | None:
        """The offset at which a numbered batch, or a part of `span` records, is stored already; see `Producers.check`.

        Raises ProducerError; ProducersExceeded for a new producer if there are too many.
        """
        producers = self.log.facts.producers
        if self._storage.producers >= PRODUCERS_MAX and batch.producer_id not in producers:
            self._forget_idle_producers()
            if self._storage.producers >= PRODUCERS_MAX:
                raise ProducersExceeded(f"{PRODUCERS_MAX:,} producers are remembered, and this would be another one")
        return producers.check(batch, span)

    def append_numbered(self, batch: RecordBatch, numbers: Numbered) -> int:
        """Store a batch that `find` found to be new, and remember it. Returns and raises as `append`."""
        offset = self.append(batch)
        producers = self.log.facts.producers
        before = len(producers)
        producers.stored(numbers, offset, self._clock.monotonic(), batch.offset_span)
        self._storage.producers += len(producers) - before
        return offset

    def repeated(self, offset: int, span: int) -> int:
        """Count a batch that is stored already at this offset; returns the offset after it, or the end if unknown."""
        self.duplicates += 1
        end = self.log.bounds()[1]
        return end if offset == OFFSET_UNKNOWN else min(offset + span, end)

    def pass_over(self, numbers: Numbered) -> None:
        """Remember a numbered batch of which no record had to be stored."""
        producers = self.log.facts.producers
        before = len(producers)
        producers.passed_over(numbers, self._clock.monotonic())
        self._storage.producers += len(producers) - before

    def _forget_idle_producers(self) -> None:
        producers, storage = self.log.facts.producers, self._storage
        before = len(producers)
        idle_s = CROWDED_IDLE_S if 2 * storage.producers > PRODUCERS_MAX else IDLE_S
        producers.expire(self._clock.monotonic() - idle_s)
        storage.producers += len(producers) - before

    def append(self, batch: RecordBatch) -> int:
        """Store a batch; returns its base offset. It is confirmed when the watermark passes it.

        Raises StorageError: nothing was stored.
        """
        base_offset = self.log.append(batch, self.leader_epoch)
        if self._noted_epoch != self.leader_epoch:
            self._noted_epoch = self.leader_epoch
            self.log.facts.epochs.note(self.leader_epoch, base_offset)
        if batch.attributes & TRANSACTIONAL or batch.offset_span != batch.count:
            self._note_hidden(batch)
        self.appended_batches += 1
        size, storage = batch.size, self._storage
        self.appended_bytes += size
        storage.appends += 1
        self._untidied_bytes += size
        storage.untidied_bytes += size
        if self._untidied_bytes >= TIDY_FROM_BYTES and (
            self._untidied_bytes >= TIDY_AFTER_BYTES or storage.untidied_bytes >= UNTIDIED_BYTES_MAX
        ):
            self._forget_untidied()
            self._spawn(lambda: self.enforce_retention(self._clock.now_ms()))
        if self._confirm_after_sync:
            self._start_sync(self._sync_until_durable)
        else:
            self._advance(base_offset + batch.offset_span)
            if self._flush_interval_s is not None:
                self._start_sync(self._sync_after_interval)
        return base_offset

    def _note_hidden(self, batch: RecordBatch) -> None:
        """Record a batch that belongs to a transaction, ends a transaction, or has gaps."""
        is_marker = bool(batch.attributes & CONTROL)
        self._appended_hidden += batch.offset_span - (0 if is_marker else batch.count)
        spans = self.transactions.note(batch)
        for tell in self.on_void if spans else ():
            tell(spans)
        if self._move_stable_end() and is_marker:
            self.watchers.tell()

    def _move_stable_end(self) -> bool:
        """Recompute the end of the records that readers may see; returns whether it has moved."""
        before, end = self._stable_end, self.transactions.first_open
        self._stable_end = end
        if (before is None) != (end is None):
            held = self._storage.held
            held.discard(self.id) if end is None else held.add(self.id)
        return before != end

    def open_transactions(self) -> Mapping[int, OpenTransaction]:
        """Transactions with batches here and without a marker, by producer."""
        return self.transactions.open

    def end_transaction(self, producer_id: int, epoch: int, number: int, *, is_commit: bool) -> None:
        """Append the marker that ends a transaction, unless it has a marker or no batch here. Raises StorageError."""
        if self.transactions.is_open(producer_id, number):
            self.append(build_marker(producer_id, epoch, number, self._clock.now_ms(), is_commit=is_commit))

    def _visible(self, batches: list[AnyBatch]) -> list[AnyBatch]:
        """Select the batches that are visible to readers, among batches below the stable offset."""
        transactions = self.transactions
        if not transactions.markers:
            return batches
        return [batch for batch in batches if not transactions.hides(batch)]

    def _start_sync(self, sync: Callable[[], Awaitable[None]]) -> None:
        if not self._syncing:
            self._syncing = True
            self._spawn(sync)

    async def _sync_until_durable(self) -> None:
        try:
            while (durable := self.log.durable()) < self.log.bounds()[1] or durable > self.durable.offset:
                if durable < self.log.bounds()[1]:
                    await self._sync_patiently()
                self._advance(self.log.durable())
        finally:
            self._syncing = False

    async def _sync_patiently(self) -> None:
        """Sync; retry later if there is no descriptor, or no disk space for a log's first checkpoint.

        Nothing is confirmed meanwhile, and no publish is refused.
        """
        try:
            await self._sync()
        except (DescriptorsExhausted, DiskFull) as error:
            logger.warning("%(partition)s: %(error)s", {"partition": str(self.id)} | log_fields(error))
            await self._clock.sleep(SYNC_RETRY_S)

    async def _sync_after_interval(self) -> None:
        assert self._flush_interval_s is not None
        try:
            await self._clock.sleep(self._flush_interval_s)
            await self._sync_patiently()
        finally:
            self._syncing = False
        if self.log.durable() < self.log.bounds()[1]:
            self._start_sync(self._sync_after_interval)

    def _forget_untidied(self) -> None:
        self._storage.untidied_bytes -= self._untidied_bytes
        self._untidied_bytes = 0

    async def enforce_retention(self, now_ms: int, age_ms: int | None = None, bytes_max: int | None = None) -> None:
        """See `PartitionLog.enforce_retention`, which is housekeeping as well."""
        self._forget_untidied()
        self._forget_idle_producers()
        self.transactions.forget_before(self.log.first_stored())
        before = self._end_before(age_ms) if age_ms is not None else None
        await self.log.enforce_retention(now_ms, age_ms=age_ms, bytes_max=bytes_max, before=before)

    def _end_before(self, age_ms: int) -> int:
        """The end of the log at least `age_ms` ago; 0 if it was not open then.

        By the monotonic clock: records below it are too old, even if the wall clock was ahead when they were appended.
        """
        ends, now_s, age_s = self._ends, self._clock.monotonic(), age_ms / 1000
        if not ends or now_s - ends[-1][0] >= age_s / ENDS_PER_AGE:
            ends.append((now_s, self.log.bounds()[1]))
        while len(ends) > 1 and ends[1][0] <= now_s - age_s:
            ends.popleft()
        return ends[0][1] if ends[0][0] <= now_s - age_s else 0

    async def _sync(self) -> None:
        started = self._clock.monotonic()
        await self.log.sync()
        self._storage.sync_seconds.observe(self._clock.monotonic() - started)

    def _advance(self, offset: int) -> None:
        """Move the marks: on one node durable records are committed, and no replica holds the stable offset back."""
        durable, committed = self.durable, self.committed
        if offset <= durable.offset:
            return
        durable.offset = committed.offset = offset
        if durable.waiting:
            durable.tell()
        if committed.waiting:
            committed.tell()
        self.watchers.tell()

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

    async def commit_all(self) -> None:
        """Commit all appended records without waiting for the background task. Raises SyncFailed."""
        if self.high_watermark < self.log.bounds()[1]:
            await self._sync()
            self._advance(self.log.durable())

    @property
    def appended_records(self) -> int:
        """Records appended since the log was opened, including records of aborted transactions."""
        return self.log.bounds()[1] - self._opened_at - self._appended_hidden

    def log_statistics(self) -> LogStatistics | None:
        """The log's statistics; None if its engine has none."""
        return self.log.statistics()

    def count_delivered(self, batches: Sequence[RecordBatch | StoredBatch]) -> None:
        """Count batches of this partition as delivered to a client."""
        self.delivered_batches += len(batches)
        for batch in batches:
            self.delivered_records += batch.count
            self.delivered_bytes += batch.size

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
        batches = list(await self.log.read(offset, bytes_max))[:READ_BATCHES_MAX]
        while batches and batches[-1].base_offset >= stable:
            batches.pop()
        return batches

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
        return (await self.log.read(offset, 1))[0]

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

    async def delete(self) -> None:
        """Close the log and delete it."""
        self._leave_storage()
        await self.log.delete()

    async def close(self) -> None:
        """Sync and close the log."""
        self._leave_storage()
        await self.log.close()

    def _leave_storage(self) -> None:
        self._forget_untidied()
        if not self._closed:
            self._closed = True
            self._storage.producers -= len(self.log.facts.producers)
            self._storage.held.discard(self.id)
