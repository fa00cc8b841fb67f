"""One partition at work: the only writer of its log, its marks, and the callbacks that wait for them.

Three marks divide a partition, and none of them goes back. `durable` is the offset below which the log's durability
policy calls this broker's records safe: the end of the log, or of the synced part. `committed`, the high watermark,
covers what all in-sync replicas have; where there is one replica, it follows `durable`. `stable_offset` lies before the
first record of an open transaction.

A broker has a role in each partition. Alone and leading, it appends; following, it stores the leader's batches as they
are, and cuts off what the leader does not have; offline, it knows no leader. `linn.core.log.replication` has the rules.

Laws: readers see only records below the stable offset. A batch is confirmed when the mark for its acks has passed it:
`durable` for acks of the leader, `committed` for acks of all replicas. Marks last as long as a broker leads: then what
waits for them fails, and new ones begin. One sync at a time runs for a partition and covers all waiting batches (group
commit). A sync that fails is not retried: it ends the broker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum

import trio

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch
from linn.core.batch.builder import build_marker
from linn.core.batch.format import Formats
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import CopyMisplaced, NotLeader
from linn.core.errors.tree import (
    DescriptorsExhausted,
    DiskFull,
    OffsetOutOfRange,
    ProducersExceeded,
    ProtocolError,
    StorageError,
)
from linn.core.log.mark import Mark
from linn.core.log.partition_reading import ReadablePartition
from linn.core.log.producers import (
    CROWDED_IDLE_S,
    IDLE_S,
    INTERNAL_IDLE_S,
    OFFSET_UNKNOWN,
    Numbered,
    Producers,
)
from linn.core.log.storage import (
    LogStatistics,
    PartitionId,
    PartitionLog,
    StoredBatch,
)
from linn.core.log.storage_stats import StorageStats
from linn.core.log.thinning import Thinning
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


class Role(Enum):
    """The role of a broker in a partition."""

    ALONE = "alone"
    """There is no other replica, and no cluster."""
    LEADING = "leading"
    FOLLOWING = "following"
    OFFLINE = "offline"
    """No leader is known."""


class Partition(ReadablePartition):
    """A partition around its `PartitionLog`. `append` is synchronous; its marks call back on confirmation."""

    # Counts since the log was opened, for the metrics.
    appended_batches = 0
    appended_bytes = 0
    delivered_batches = 0
    delivered_records = 0
    delivered_bytes = 0
    duplicates = 0
    """Repeated batches, which were not stored again."""

    on_closed: Callable[[], None] | None = None
    """Called when the log is closed or deleted."""
    _failed_s: tuple[float, float] | None = None
    """Times of the first and the last failed append, since an append last succeeded."""
    _on_appended: Callable[[], None] | None = None
    """Called after an append of a leader that is not durable yet."""
    may_be_timed = True
    """Whether batches may have delays or TTLs. A state log's never have."""
    on_timed: Callable[[RecordBatch], None] | None = None
    """Called with each appended batch whose records have TTLs or delays."""

    def __init__(
        self,
        id: PartitionId,
        log: PartitionLog,
        storage: StorageStats,
        clock: Clock,
        spawn: Spawn,
        leader_epoch: int = 0,
        formats: Formats | None = None,
        *,
        is_replicated: bool = False,
    ) -> None:
        """`formats`: the formats in which clients may publish; None: only linn's own, as in an internal log.

        `is_replicated`: the partition is offline until its role is known, and none of its records count as committed.
        """
        self.id = id
        self._formats = formats if formats is not None else Formats()
        self.log = log
        self.thinning = Thinning(log)
        self.leader_epoch = leader_epoch
        """The epoch of the leader; stamped on this broker's appends if it leads."""
        self.role = Role.OFFLINE if is_replicated else Role.ALONE
        self.leads = not is_replicated
        """Whether this broker may append."""
        self.leader = 0
        """The node that leads, where it is another; 0: unknown."""
        self._is_replicated = is_replicated
        """Whether `committed` is moved by `commit`. Otherwise it follows `durable`."""
        self._on_durable: Callable[[], None] | None = None
        """Called when `durable` of a replica has moved."""
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
        self.committed = Mark(log.bounds()[0] if is_replicated else self._opened_at, spawn)
        self.transactions = log.facts.transactions
        self._stable_end: int | None = None
        """The offset of the first batch of an open transaction; None if there is none."""
        self._move_stable_end()
        self.on_void: list[Callable[[Sequence[Span]], None]] = []
        """Callbacks with offsets that readers will never get: markers, and records of aborted transactions."""
        self.watchers = Watchers(spawn)
        """Callbacks for every move of the stable offset."""

    def find(self, batch: Numbered, span: int | None) -> int | None:
        """The offset at which a numbered batch, or a part of `span` records, is stored already; see `Producers.check`.

        Raises NotLeader; ProducerError; ProducersExceeded for a new producer if there are too many.
        """
        if not self.leads:
            raise self.not_leader()
        producers = self.log.facts.producers
        is_counted = batch.producer_id >= 0 and batch.producer_id not in producers
        if self._storage.producers >= PRODUCERS_MAX and is_counted:
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
        now_s = self._clock.monotonic()
        producers.expire(now_s - idle_s, now_s - INTERNAL_IDLE_S)
        storage.producers += len(producers) - before

    def append(self, batch: RecordBatch) -> int:
        """Store a batch; returns its base offset. It is confirmed when the watermark passes it.

        Raises NotLeader, StorageError: nothing was stored.
        """
        if not self.leads:
            raise self.not_leader()
        is_timed = self.may_be_timed and not batch.is_plain and batch.is_timed  # Asked before the log owns the batch.
        try:
            base_offset = self.log.append(batch, self.leader_epoch)
        except StorageError:
            now_s = self._clock.monotonic()
            self._failed_s = (self._failed_s or (now_s, now_s))[0], now_s
            raise
        if self._failed_s is not None:
            self._failed_s = None
        if self._noted_epoch != self.leader_epoch:
            self._noted_epoch = self.leader_epoch
            self.log.facts.epochs.note(self.leader_epoch, base_offset)
        if batch.attributes & TRANSACTIONAL or batch.offset_span != batch.count:
            self._note_hidden(batch)
        if is_timed:
            self.log.facts.timed_end = batch.end_offset
            if self.on_timed is not None:
                self.on_timed(batch)
        self.appended_batches += 1
        size, storage = batch.size, self._storage
        self.appended_bytes += size
        storage.appends += 1
        self._untidied_bytes += size
        storage.untidied_bytes += size
        if self._untidied_bytes >= TIDY_FROM_BYTES:
            self._tidy_if_due()
        if self._confirm_after_sync:
            self._start_sync(self._sync_until_durable)
            if self._on_appended is not None:
                self._on_appended()
        else:
            self._advance(base_offset + batch.offset_span)
            if self._flush_interval_s is not None:
                self._start_sync(self._sync_after_interval)
        return base_offset

    @property
    def is_failing(self) -> bool:
        """Whether the last append failed."""
        return self._failed_s is not None

    def failing_s(self) -> float:
        """The time in which every append has failed, from the first one to the last; 0: the last one did not."""
        return self._failed_s[1] - self._failed_s[0] if self._failed_s is not None else 0.0

    def _tidy_if_due(self) -> None:
        if self._untidied_bytes >= TIDY_AFTER_BYTES or self._storage.untidied_bytes >= UNTIDIED_BYTES_MAX:
            self._forget_untidied()
            self._spawn(lambda: self.enforce_retention(self._clock.now_ms()))

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

    async def enforce_retention(
        self, now_ms: int, age_ms: int | None = None, bytes_max: int | None = None, keep: int | None = None
    ) -> None:
        """See `PartitionLog.enforce_retention`, which is housekeeping as well. Replicas keep the uncommitted.

        Others have a turn first: a broker calls this for all of its logs, thousands of them, one after the other.
        """
        await trio.lowlevel.checkpoint()
        self._forget_untidied()
        self._forget_idle_producers()
        self.transactions.forget_before(self.log.first_stored())
        if not self.leads:
            age_ms = bytes_max = None  # The leader decides: see `follow_start`.
        before = self._end_before(age_ms) if age_ms is not None else None
        if self._is_replicated:
            keep = self.high_watermark if keep is None else min(keep, self.high_watermark)
        await self.log.enforce_retention(now_ms, age_ms=age_ms, bytes_max=bytes_max, before=before, keep=keep)

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
        """Move the mark `durable`; where there is one replica, durable records are committed."""
        durable, committed = self.durable, self.committed
        if offset <= durable.offset:
            return
        if self._is_replicated:
            durable.offset = offset
            if durable.waiting:
                durable.tell()
            if self._on_durable is not None:
                self._on_durable()
            return
        durable.offset = committed.offset = offset
        if durable.waiting:
            durable.tell()
        if committed.waiting:
            committed.tell()
        self.watchers.tell()

    def commit(self, offset: int) -> None:
        """Move the watermark of a replicated partition; an earlier offset changes nothing.

        Of a follower: to what the leader has told, at most the end of its own log.
        """
        assert self._is_replicated, "where there is one replica, `durable` moves the watermark"
        committed = self.committed
        if offset > committed.offset:
            assert offset <= self.log.bounds()[1], "a watermark beyond the end"
            committed.offset = offset
            if committed.waiting:
                committed.tell()
            self.watchers.tell()

    async def commit_all(self) -> None:
        """Commit all appended records without waiting for the background task. Does nothing where another leads.

        Raises SyncFailed, NotLeader.
        """
        committed, end = self.committed, self.log.bounds()[1]
        if self.leads and committed.offset < end:
            await self._sync()
            self._advance(self.log.durable())
            await committed.wait(end)

    async def make_durable(self) -> None:
        """Put all appended records on stable storage, whatever the log's policy, and wait until they are committed.

        Raises SyncFailed, DiskFull, NotLeader.
        """
        committed, end = self.committed, self.log.bounds()[1]
        await self.log.sync()
        if committed.offset < end:
            self._advance(self.log.durable())
            await committed.wait(end)

    # --- roles -------------------------------------------------------------------------------------------------------

    def not_leader(self) -> NotLeader:
        """The error of requests that only a leader serves."""
        where = f"node {self.leader} leads it" if self.leader else "no leader of it is known here"
        if self.role is Role.LEADING:
            where = "it is about to be led by another node"
        text = f"this broker does not lead {self.id}: {where} in epoch {self.leader_epoch}"
        return NotLeader(text, leader=self.leader, epoch=self.leader_epoch)

    def lead(self, epoch: int, on_durable: Callable[[], None], on_appended: Callable[[], None] | None = None) -> None:
        """Lead in a new epoch. Call `commit` as the watermark moves.

        What waits from an epoch before, if this broker led in that one too, goes on waiting: its records are there.
        """
        assert self._is_replicated, "who is alone has one epoch"
        self.role, self.leads, self.leader, self.leader_epoch = Role.LEADING, True, 0, epoch
        self._on_durable, self._on_appended, self._failed_s = on_durable, on_appended, None

    def hold(self) -> None:
        """Append nothing more, because another broker is about to lead: appends fail with NotLeader until `lead`."""
        self.leads = False

    def follow(self, leader: int, epoch: int, on_durable: Callable[[], None]) -> None:
        """Follow a leader in an epoch. What waits for this broker as the leader fails with NotLeader."""
        self.role, self.leads, self.leader, self.leader_epoch = Role.FOLLOWING, False, leader, epoch
        self._on_durable, self._on_appended = on_durable, None
        self._fail_marks()

    def go_offline(self, epoch: int) -> None:
        """Serve nothing until the leader of an epoch is known. What waits fails with NotLeader."""
        self.role, self.leads, self.leader, self.leader_epoch = Role.OFFLINE, False, 0, epoch
        self._on_durable = self._on_appended = None
        self._fail_marks()

    def _fail_marks(self) -> None:
        failed = self.durable, self.committed
        self._renew_marks()
        for mark in failed:
            mark.fail(self.not_leader())

    def _renew_marks(self) -> None:
        """Begin new marks, at most at the end of the log."""
        start, end = self.log.bounds()
        durable = min(self.log.durable(), end) if self._confirm_after_sync else end
        self.committed = Mark(max(start, min(self.committed.offset, end)), self._spawn)
        self.durable = Mark(durable, self._spawn)

    def append_copy(self, batches: Sequence[RecordBatch]) -> None:
        """Store batches of the leader as they are; see `PartitionLog.append_copy`. They are not counted as appended.

        Raises CopyMisplaced, BatchCorrupt, BatchMalformed: nothing was stored. StorageError: the first ones may be.
        """
        if self.role is not Role.FOLLOWING:
            raise CopyMisplaced(f"this broker does not follow the leader of {self.id}")
        if batches and batches[-1].leader_epoch > self.leader_epoch:
            # A former leader may have cut its log before it sent this part of a file.
            raise CopyMisplaced(f"a copy of a later epoch than {self.leader_epoch} came from its leader")
        log, storage = self.log, self._storage
        before, size, producers = log.bounds()[1], log.size_bytes(), len(log.facts.producers)
        try:
            log.append_copy(batches)
        finally:
            end, size = log.bounds()[1], log.size_bytes() - size
            storage.producers += len(log.facts.producers) - producers
            storage.untidied_bytes += size
            self._untidied_bytes += size
            self._opened_at += end - before
            self._move_stable_end()
            self._tidy_if_due()
            if not self._confirm_after_sync:
                self._advance(end)
            if self._confirm_after_sync or self._flush_interval_s is not None:
                self._start_sync(self._sync_until_durable if self._confirm_after_sync else self._sync_after_interval)

    async def follow_start(self, start: int) -> None:
        """Drop the records before the leader's start, as far as there are any. Raises StorageError."""
        first, end = self.log.bounds()
        if start > first:
            await self.log.trim(before=min(start, end))

    async def cut(self, after: int) -> None:
        """Drop the records from an offset on, which the leader does not have; also those before it in the same batch.

        The log then ends before the offset, which only a thinned batch covers that others have acknowledged before an
        unclean election. Raises OffsetOutOfRange, StorageError.
        """
        try:
            await self._replace_records(self.log.trim(after=after))
        except OffsetOutOfRange:
            batch, start = (await self.log.read(after, 1))[0], self.log.bounds()[0]
            whole = self.log.trim(after=batch.base_offset) if batch.base_offset > start else self.log.restart_at(start)
            await self._replace_records(whole)

    async def restart_at(self, start: int) -> None:
        """Drop all records, and go on at the leader's start, which lies beyond the end. Raises StorageError."""
        await self._replace_records(self.log.restart_at(start))

    async def know_producers(self, snapshot: bytes) -> None:
        """Know the producers of the records so far as the leader does: some of these records may never have been here.

        Raises ProtocolError: it is no snapshot. StorageError.
        """
        try:
            producers = Producers.decode(snapshot)
        except ValueError as error:
            raise ProtocolError(f"{self.id}: {error}") from error
        known = self.log.facts.producers
        if known.before(self.log.bounds()[1]).encode() != snapshot:
            producers.opened(self._clock.monotonic())
            await self.log.know_producers(producers)
            self._storage.producers += len(producers) - len(known)

    async def _replace_records(self, change: Awaitable[None]) -> None:
        log, storage = self.log, self._storage
        assert not self.leads, "a leader never cuts its log"
        before, producers = log.bounds()[1], len(log.facts.producers)
        storage.cut_batches.forget(self)
        await change
        storage.producers += len(log.facts.producers) - producers
        log.facts.producers.opened(self._clock.monotonic())
        self.transactions = log.facts.transactions
        self._opened_at += log.bounds()[1] - before
        self._ends.clear()
        self._move_stable_end()
        self._renew_marks()

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
            if self.on_closed is not None:
                self.on_closed()
            self._storage.producers -= len(self.log.facts.producers)
            self._storage.held.discard(self.id)
