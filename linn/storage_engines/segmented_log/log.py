"""SegmentedLog: a partition's log in segments. See also `segment` (one file), `recovery` (opening), `checkpoint`.

Laws:

- `append` writes once, to the page cache, and starts a new segment without waiting for the old one's sync; so several
  segments may be ahead of `durable`. `sync` and `enforce_retention` sync such segments, oldest first, and seal them:
  their index files and then the checkpoint record that they are whole.
- `enforce_retention` also indexes the active segment as it grows: the part that an opening scans after a crash does not
  depend on the size of the log or of a segment.
- Changes of files other than appends hold `_lock`.
- A log without any append is an empty folder: the first append creates its segment, and the next sync the other files
  and the durable names of the folder and its parents. A synced log that has been idle for a while has no open
  descriptor.
- After a failed sync, unsynced data is not trusted, and the log takes no more work.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import trio

from linn.api import (
    READ_BATCHES_MAX,
    Capabilities,
    DamagedTail,
    Env,
    LogClosed,
    LogStatistics,
    Needed,
    OffsetOutOfRange,
    PartitionLog,
    Producers,
    RecordBatch,
    StorageError,
    StoredBatch,
    SyncFailed,
    check_copies,
    log_fields,
)
from linn.storage_engines.segmented_log.checkpoint import Checkpoint, CheckpointFile
from linn.storage_engines.segmented_log.folder import delete_folder, sync_way_to
from linn.storage_engines.segmented_log.index import IndexImage
from linn.storage_engines.segmented_log.recovery import Recovery
from linn.storage_engines.segmented_log.retention import count_to_drop
from linn.storage_engines.segmented_log.segment import Segment
from linn.storage_engines.segmented_log.segments import Segments
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings
from linn.storage_engines.segmented_log.thinning import is_worth_it, thin_copy

logger = logging.getLogger("linn.storage")

_SCAN_BYTES_MAX = 2 << 20
"""Bytes of the active segment that a crash may leave to scan before an index file covers them: with 1,000 active
partitions, two seconds of scanning at worst."""
_CLOCK_STEP_MS = 60_000
"""Limit by which the clock may go back without effect on append times. If it is set back further, a new segment begins:
its batches have the clock's times, so that earlier times in the future do not delay retention."""
_SCAN_SHARE = 8
"""A large active segment is indexed again when 1/n of it is new, so that writing indexes is cheap."""


class SegmentedLog(PartitionLog):
    """One partition's log. See `linn.core.log.storage.PartitionLog` for the promises of each method."""

    def __init__(self, folder: str, settings: SegmentedLogSettings, env: Env, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._folder = folder
        self._settings = settings
        self._disk = env.disk
        self._clock = env.clock
        self._lock = trio.Lock()
        self._checkpoint_file = CheckpointFile(env.disk, folder)
        self._refusal: str | None = None
        self._recovery: Recovery | None = None
        self._closed = False
        self._noted: Checkpoint | None = None
        """The content of the checkpoint as last written by this log."""
        self._proved = 0
        """The offset below which everything is durable according to the checkpoint."""

    @classmethod
    async def examined(
        cls, folder: str, settings: SegmentedLogSettings, env: Env, capabilities: Capabilities
    ) -> SegmentedLog:
        """Examine the log in an existing folder, without opening or changing it.

        Raises LogCorrupt, SyncFailed, StorageError.
        """
        log = cls(folder, settings, env, capabilities)
        log._recovery = log._new_recovery()
        await log._recovery.examine()
        return log

    async def begin(self) -> None:
        """Open the examined log; an empty folder becomes an empty log.

        Raises LogCorrupt, DiskFull, DiskReadOnly, SyncFailed, StorageError.
        """
        recovery, self._recovery = self._recovery, None
        assert recovery is not None, "a log is opened once"
        await self._take_over(recovery)

    def _new_recovery(self) -> Recovery:
        return Recovery(self._disk, self._folder, self._checkpoint_file, self._settings.index_interval_bytes)

    async def damaged_tail(self, *, cut: bool) -> DamagedTail | None:
        """Find the damage that prevents an opening; with `cut`, cut it off. See `StorageEngine.damaged_tail`."""
        recovery = self._new_recovery()
        tail = await recovery.tail()
        if cut and tail is not None:
            await recovery.cut()
        return tail

    async def _take_over(self, recovery: Recovery) -> None:
        recovered = await recovery.mend()
        self.facts = recovered.facts
        self._segments = Segments(recovered.segments)
        self._cut_bytes = recovered.cut_bytes
        self._active = self._segments.active
        self._start = recovered.start
        self._end = self._durable = self._proved = self._active.end_offset
        self._size_bytes = sum(segment.size_bytes for segment in recovered.segments)
        self._append_time_ms = next(
            (segment.last_append_ms for segment in reversed(recovered.segments) if segment.size_bytes), 0
        )
        self._is_made = not recovered.is_new
        self._folder_changes, self._folder_changes_synced = 1, 0
        self._idle_since = self._end
        self._active.shut()
        self._dead_in, self._dead_bytes = self._active, 0
        await self._count_dead()

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, batch: RecordBatch, leader_epoch: int = 0) -> int:
        """Append as the port says: one write, no loop over records."""
        if self._refusal is not None:
            self._check_usable()
        now_ms = self._clock.now_ms()
        if now_ms < self._append_time_ms:
            now_ms = self._time_behind(now_ms)
        active, settings = self._active, self._settings
        if (
            active.size_bytes + batch.size > settings.segment_bytes_max
            or now_ms - active.first_append_ms >= settings.segment_age_ms
        ) and active.size_bytes:
            active = self._roll()
        if not self._is_made:
            self._make()
        offset = self._end
        batch.stamp(offset, now_ms, self._durable, leader_epoch)
        active.append(batch)
        self._append_time_ms = now_ms
        self._size_bytes += batch.size
        self._end = active.end_offset
        return offset

    def append_copy(self, batches: Sequence[RecordBatch]) -> int:
        """Append as the port says: one write for all batches that go to the same segment.

        A segment also ends where the copies' append times go back, as in the leader's log.
        """
        self._check_usable()
        check_copies(self, batches)
        group, group_bytes, last_ms = list[RecordBatch](), 0, self._append_time_ms
        for batch in batches:
            is_full = self._active.is_full_for(batch, group_bytes, self._settings)
            if is_full or batch.append_time_ms < last_ms - _CLOCK_STEP_MS:
                self._store_copies(group)
                group, group_bytes = [], 0
                if self._active.size_bytes:
                    self._roll()
            group.append(batch)
            group_bytes += batch.size
            last_ms = batch.append_time_ms
        self._store_copies(group)
        return self._end

    def _store_copies(self, batches: Sequence[RecordBatch]) -> None:
        """Write copies to the active segment. Raises DiskFull, StorageError: nothing has changed."""
        if not batches:
            return
        if not self._is_made:
            self._make()
        for batch in batches:
            batch.stamp(batch.base_offset, batch.append_time_ms, self._durable, batch.leader_epoch)
        self._active.append_copies(batches)
        for batch in batches:
            self.facts.note(batch)
        self._append_time_ms = batches[-1].append_time_ms
        self._size_bytes += sum([batch.size for batch in batches])
        self._end = self._active.end_offset

    def _time_behind(self, now_ms: int) -> int:
        """The append time of a batch when the clock is behind the last one's. Raises DiskFull, StorageError."""
        ahead_ms = self._append_time_ms - now_ms
        if ahead_ms <= _CLOCK_STEP_MS:
            return self._append_time_ms
        if self._active.size_bytes:
            self._roll()
        text = "%(folder)s: the append time of the last batch lies %(seconds)d s in the future; the clock was set back"
        logger.warning(text, {"folder": self._folder, "seconds": ahead_ms // 1000})
        self._append_time_ms = now_ms
        return now_ms

    def _make(self) -> None:
        """Create the files of a new log. Raises DiskFull, StorageError: none exist."""
        self._checkpoint_file.prepare()
        try:
            self._active.create()
        except BaseException:
            self._checkpoint_file.forget()
            raise
        self._folder_changes += 1
        self._is_made = True

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise LogClosed(f"{self._folder}: {self._refusal}")

    def _roll(self) -> Segment:
        """Begin a new segment after the active one. Raises DiskFull, StorageError: nothing has changed."""
        base, interval_bytes = self._end, self._settings.index_interval_bytes
        segment = Segment(self._disk, f"{self._folder}/{base:020d}", base, interval_bytes)
        segment.create()
        self._active.facts = self.facts.encode()
        self._folder_changes += 1
        self._segments.add(segment)
        self._active = segment
        return segment

    # --- durability --------------------------------------------------------------------------------------------------

    def durable(self) -> int:
        """The offset below which all records are on stable storage."""
        return self._durable

    async def sync(self) -> None:
        """Sync as the port says; appends continue meanwhile. Cancellation: `durable()` tells how far it got."""
        async with self._working():
            await self._sync_all()
            await self._seal_finished()

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Hold the lock of a usable log; a failed sync makes it unusable. Raises LogClosed."""
        if self._lock.locked():
            await self._lock.acquire()
        else:
            self._lock.acquire_nowait()  # A sync does not take a turn of the loop for this.
        try:
            self._check_usable()
            yield
        except SyncFailed:
            self._refusal = "a sync failed, so the contents of the disk are unknown"
            raise
        finally:
            self._lock.release()

    async def _sync_all(self) -> None:
        end, active, changes = self._end, self._active, self._folder_changes
        if end == self._durable and changes == self._folder_changes_synced:
            return
        for segment in self._segments.unsealed_before(active):
            await segment.sync()
        if changes != self._folder_changes_synced:
            await self._sync_names()
            self._folder_changes_synced = changes
        if end != self._durable:
            await active.sync()
            self._durable = end

    async def _sync_names(self) -> None:
        """Sync the folder and, for a new log, the names of the folder and its parents."""
        if not self._is_made:
            await sync_way_to(self._disk, self._folder)
            return
        if not self._checkpoint_file.is_made:
            await self._write_checkpoint()
        await self._disk.sync_dir(self._folder)

    async def _seal_finished(self) -> None:
        """Write the index files of finished, durable segments, then record that in the checkpoint.

        Also once the active segment has durable records: otherwise an opening would not notice its loss.
        """
        unsealed = self._segments.unsealed_before(self._active)
        finished = [s for s in unsealed if s.end_offset <= self._durable]
        if not finished and not self._proved <= self._active.base_offset < self._durable:
            return
        with self._deferring("a finished segment can't be sealed now"):
            for segment in finished:
                await segment.write_index()
                self._segments.touch(segment)
            if finished:
                await self._disk.sync_dir(self._folder)
            await self._write_checkpoint()

    def _wants_index(self, active: Segment) -> bool:
        few = min(_SCAN_BYTES_MAX, self._settings.segment_bytes_max // 2)
        return active.size_bytes - max(active.indexed_bytes, 0) >= max(few, active.size_bytes // _SCAN_SHARE)

    async def _index_active(self, active: Segment, image: IndexImage) -> None:
        """Write the active segment's index from before the sync, unless an earlier segment waits to be sealed."""
        if self._segments.unsealed_before(active):
            return
        with self._deferring("the active segment can't be indexed now"):
            await active.put_index(image)
            await self._disk.sync_dir(self._folder)

    @contextmanager
    def _deferring(self, what: str) -> Iterator[None]:
        """Log that housekeeping failed. The data is safe, and a later call retries: only an opening takes longer.

        Raises SyncFailed.
        """
        try:
            yield
        except SyncFailed:
            raise
        except StorageError as error:
            about = {"folder": self._folder, "what": what} | log_fields(error)
            logger.warning("%(folder)s: %(what)s: %(error)s", about)

    async def _note_end(self) -> None:
        """Record how far the log is durable, so that the next opening notices missing bytes."""
        with self._deferring("the checkpoint can't be written now"):
            await self._write_checkpoint()

    async def _write_checkpoint(self) -> None:
        checkpoint = Checkpoint(self._start, self._durable)
        if checkpoint != self._noted:
            await self._checkpoint_file.write(checkpoint)
            self._noted, self._proved = checkpoint, checkpoint.durable

    # --- reading -----------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """(start, end)."""
        return self._start, self._end

    def size_bytes(self) -> int:
        """Bytes from the start on, rounded up by less than the distance between two index entries."""
        return self._size_bytes - (self._dead_bytes if self._dead_in is self._segments.first else 0)

    def first_stored(self) -> int:
        """See `PartitionLog.first_stored`: the start may not be durable within the first segment."""
        return self._segments.first.base_offset

    def statistics(self) -> LogStatistics:
        """See `PartitionLog.statistics`."""
        return LogStatistics(len(self._segments), self._cut_bytes)

    async def _count_dead(self) -> None:
        """Find the part of the first segment that lies before the start, which does not count as kept."""
        first, start = self._segments.first, self._start
        dead = first.size_bytes
        if start <= first.base_offset:
            dead = 0
        elif start < first.end_offset:
            dead = (await first.index()).entry_before(start)[1]
            self._segments.touch(first)
        self._dead_in, self._dead_bytes = first, dead

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read as the port says."""
        self._check_usable()
        end = self._end
        self._check_range(offset)
        batches: list[RecordBatch] = []
        while offset < end:
            segment = self._segments.holding(offset)
            left = READ_BATCHES_MAX - len(batches)
            try:
                more = await segment.read(offset, bytes_max, at_least_one=not batches, batches_max=left)
            except OffsetOutOfRange:
                if offset < self._start or segment in self._segments:
                    raise
                continue  # It was thinned meanwhile.
            self._segments.touch(segment)
            if not more:
                break
            batches = batches + more if batches else more
            offset = more[-1].end_offset
            bytes_max -= sum([batch.size for batch in more])
            full = bytes_max <= 0 or len(batches) >= READ_BATCHES_MAX
            if offset != segment.end_offset or full or not self._start <= offset:
                break
        return batches

    def read_nowait(self, offset: int, bytes_max: int) -> Sequence[RecordBatch | StoredBatch]:
        """Read as the port says, from one segment."""
        self._check_usable()
        if not self._start <= offset < self._end:
            return ()
        return self._segments.holding(offset).read_nowait(offset, bytes_max)

    def _check_range(self, offset: int) -> None:
        if not self._start <= offset <= self._end:
            text = f"{self._folder} begins at offset {self._start} and ends at {self._end}, not {offset}"
            raise OffsetOutOfRange(text)

    async def offset_at(self, timestamp_ms: int) -> int:
        """See the port; costs two bisections and the heads of a few batches."""
        self._check_usable()
        for segment in tuple(self._segments):
            if segment.max_timestamp_ms >= timestamp_ms and not segment.retired:
                found = await segment.offset_at(timestamp_ms, self._start)
                self._segments.touch(segment)
                if found is not None:
                    return found
        return self._end

    # --- forgetting --------------------------------------------------------------------------------------------------

    async def trim(self, *, before: int | None = None, after: int | None = None) -> None:
        """Trim as the port says.

        `before` moves the start at once; the move is durable when a whole segment was dropped, or on `close`: after a
        crash the start may be further back, in the first remaining segment. `after` is durable on return; meanwhile the
        log is closed to other callers, and stays closed if this call is cancelled.
        """
        if before is not None:
            await self._trim_before(before)
        if after is not None:
            await self._trim_after(after)

    async def _trim_before(self, before: int) -> None:
        if before > self._end:
            raise OffsetOutOfRange(f"{self._folder} ends at offset {self._end}, before {before}")
        self._check_usable()
        self._start = max(self._start, before)
        if self._segments.number_before(self._start):
            async with self._working():
                await self._drop(self._segments.number_before(self._start))
        await self._count_dead()

    async def _drop(self, count: int) -> None:
        """Delete the first `count` segments, which lie before the start, after recording it in the checkpoint."""
        if count <= 0:
            return
        if not any(segment.has_index for segment in list(self._segments)[count:]):
            await self._keep_facts()
        await self._write_checkpoint()
        for segment in self._segments.drop_first(count):
            self._size_bytes -= segment.size_bytes
            segment.unlink()
        await self._disk.sync_dir(self._folder)

    async def _keep_facts(self) -> None:
        """Write a snapshot of the facts to a segment that is not about to be dropped."""
        image = self._active.index_image(self.facts.encode())
        await self._sync_all()
        await self._seal_finished()
        await self._index_active(self._active, image)

    async def _trim_after(self, after: int) -> None:
        self._check_range(after)
        async with self._working():
            if after == self._end:
                return
            segment = self._segments.holding(after)
            if (await segment.head_of(after)).base_offset != after:
                raise OffsetOutOfRange(f"no batch of {self._folder} begins at offset {after}")
            await self._cut(Checkpoint(self._start, min(self._durable, after), cut=after))

    async def thin(self, needed: Needed, before: int, commit: Callable[[], Awaitable[None]]) -> bool:
        """Thin as the port says: see `thinning`. The log works on meanwhile; if it is cut, this ends."""
        segments, has_thinned = self._segments, False
        for segment in segments.finished:
            if segment.end_offset > before or self._refusal is not None or self._segments is not segments:
                break
            if is_worth_it(segment, needed):
                about = needed, commit, dict(self.facts.epochs.rows()).values(), self._settings.index_interval_bytes
                copy = await thin_copy(self._disk, segment, *about)
                segments.touch(segment)
                has_thinned = (copy is not None and await self._replace(segment, copy)) or has_thinned
        return has_thinned

    async def _replace(self, segment: Segment, copy: Segment) -> bool:
        async with self._working():
            if not self._segments.replace(segment, copy):
                return False
            self._size_bytes += copy.size_bytes - segment.size_bytes
            self.facts.transactions.hide_all_but(segment.base_offset, segment.end_offset, copy.needed_max)
            await self._disk.sync_dir(self._folder)
            with self._deferring("a thinned segment can't be indexed now"):
                await copy.write_index()
            await self._keep_facts()  # With the number of records that are left.
        await self._count_dead()
        return True

    async def restart_at(self, start: int) -> None:
        """Drop everything as the port says. Cancellation: the log takes no more work, and the next opening finishes."""
        async with self._working():
            await self._cut(Checkpoint(start, start, cut=0))

    async def know_producers(self, producers: Producers) -> None:
        """Replace the producers as the port says, and store a snapshot."""
        async with self._working():
            self.facts.producers = producers
            await self._keep_facts()

    async def _cut(self, checkpoint: Checkpoint) -> None:
        """Carry out the cut in a checkpoint; the log is closed to other callers meanwhile."""
        self._refusal = "it was being cut"
        self._noted = None
        await self._checkpoint_file.write(checkpoint)
        self._segments.shut()
        recovery = self._new_recovery()
        await recovery.examine()
        await self._take_over(recovery)
        self._refusal = None

    async def enforce_retention(
        self, now_ms: int, *, age_ms: int | None, bytes_max: int | None, before: int | None, keep: int | None = None
    ) -> int:
        """Drop segments as the port says. Seals finished segments first, to leave little to scan after a crash."""
        async with self._working():
            self._roll_if_old(now_ms, age_ms, before)
            active = self._active
            image = active.index_image(self.facts.encode()) if self._wants_index(active) else None
            if image is not None or self._segments.unsealed_before(active):
                await self._sync_all()
                await self._seal_finished()
            if image is not None:
                await self._index_active(active, image)
            finished = self._segments.finished
            budget = bytes_max - active.size_bytes if bytes_max is not None else None
            bounds = {"age_ms": age_ms, "bytes_max": budget, "before": before}
            count = count_to_drop(finished, now_ms, keep, **bounds, dead_bytes=self._size_bytes - self.size_bytes())
            self._start = max(self._start, finished[count - 1].end_offset if count else 0)
            await self._drop(self._segments.number_before(self._start))
            await self._rest_if_idle()
            return self._start

    async def _rest_if_idle(self) -> None:
        """Shut the active segment if no batch was appended since the last call."""
        if self._idle_since == self._end and not self._active.is_shut:
            await self._sync_all()
            if self._idle_since == self._end:
                await self._note_end()
                self._active.shut()
        self._idle_since = self._end

    def _roll_if_old(self, now_ms: int, age_ms: int | None, before: int | None) -> None:
        active = self._active
        if not active.size_bytes:
            return
        if active.last_append_ms > now_ms:
            expired = before is not None and active.base_offset < before
        else:
            newest_ms = max(segment.last_append_ms for segment in self._segments if segment.last_append_ms <= now_ms)
            expired = age_ms is not None and newest_ms < now_ms - age_ms
        if not expired and now_ms - active.first_append_ms < self._settings.segment_age_ms:
            return
        with self._deferring("no new segment can be made now"):  # A full disk must not stop retention.
            self._roll()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Sync, seal everything, and close. Idempotent; a failed log is only closed. Raises SyncFailed."""
        async with self._lock:
            failed, closed = self._refusal is not None, self._closed
            self._refusal, self._closed = self._refusal or "it is closed", True
            if closed:
                return
            try:
                if self._is_made and not failed:
                    await self._sync_all()
                    await self._seal_finished()
                    await self._seal_active()
            finally:
                self._segments.shut()

    async def _seal_active(self) -> None:
        """Record the log's end, so that the next opening scans nothing and notices missing bytes."""
        with self._deferring("closed without its index"):
            if not self._active.is_sealed:
                self._active.facts = self.facts.encode()
                await self._active.write_index()
                await self._disk.sync_dir(self._folder)
            await self._write_checkpoint()

    async def delete(self) -> None:
        """Close and remove everything. Cancellation or a crash: the next opening drops the rest."""
        async with self._lock:
            self._refusal, self._closed = "it is deleted", True
            self._segments.shut()
            if not self._disk.exists(self._folder):
                return
            if self._is_made:
                await self._checkpoint_file.write(Checkpoint(0, 0, cut=0))
            await delete_folder(self._disk, self._folder, holds_records=self._is_made)
            with suppress(StorageError):  # The topic's folder may have others, and checking takes longer.
                self._disk.remove_dir(self._folder.rpartition("/")[0])
