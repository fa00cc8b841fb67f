"""A segment: one file of batches, exactly as received, with the known facts about it.

Laws: a segment is written only at its end; `size_bytes` is the end of the last whole batch, and bytes after it are
never read; a damaged batch is reported as `LogCorrupt`, never skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from linn.api import (
    READ_BATCHES_MAX,
    BatchCorrupt,
    BatchError,
    BatchMalformed,
    Disk,
    File,
    LogCorrupt,
    LogFacts,
    OffsetOutOfRange,
    RecordBatch,
    StorageError,
    StoredBatch,
    counted,
)
from linn.storage_engines.segmented_log.index import (
    HEADER_BYTES,
    NO_TIME,
    IndexImage,
    SparseIndex,
    Summary,
    decode_entries,
    decode_facts,
    decode_summary,
    encode_index,
    encoded_facts,
)
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings
from linn.storage_engines.segmented_log.stored_batch import HEAD_BYTES, Head, batch_bytes, head_at, whole_batches

logger = logging.getLogger("linn.storage")

SCAN_BYTES = 4 << 20
"""Bytes per read while scanning: enough to keep a disk busy, and few enough to hold for every partition at once."""
_PIECE_BYTES = 64 << 10
"""Bytes per read of a segment before the size of its batches is known."""
REGION_BYTES_MIN = 16 << 10
"""Smallest batch sent directly from the file: for smaller ones, one large read costs less than reading each head."""
_CACHED_BYTES_MAX = 64 << 10
"""Bytes of small batches read without a pause: 20 us for batches of a hundred records, 350 us for single records."""
_HINTS_MAX = 256
"""Positions of readers that a segment remembers; with more readers, some use the index."""
_NO_INDEX = -1


@dataclass(frozen=True, slots=True)
class Damage:
    """The first unreadable position of a segment, and the reason."""

    position: int
    offset: int
    reason: str
    certain: bool = False
    """Whether the damage can't come from a torn write."""


class Segment:
    """One segment. Its numbers cover the whole batches up to `size_bytes`."""

    def __init__(self, disk: Disk, path: str, base_offset: int, index_interval_bytes: int) -> None:
        """Name the segment by `path` (without suffix). No I/O."""
        self._disk = disk
        self.path = f"{path}.log"
        self.index_path = f"{path}.index"
        self.base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._file: File | None = None
        self.retired = False
        """Whether its files were deleted."""
        self.indexed_bytes = _NO_INDEX
        """Bytes of the segment covered by its index file on stable storage; all bytes once the segment is sealed.

        The index of an empty segment covers 0 bytes, and may be the only place with the facts of an emptied log.
        """
        self.facts = b""
        """Snapshot of the log's facts at the end of this segment, until it is in the index file."""
        self.needed_max = -1
        """The most records of it that may be needed, as found by the last try to thin it; -1: it was not tried."""
        self._forget()

    def _forget(self) -> None:
        self.end_offset = self.base_offset
        self.size_bytes = 0
        self.last_position = 0
        self.max_timestamp_ms = NO_TIME
        self.first_append_ms = 0
        self.last_append_ms = 0
        self._index: SparseIndex | None = SparseIndex()
        self._entry_at = 0
        self._hints: dict[int, int] = {}
        self.scanned = LogFacts()
        """Facts of the batches found by `scan`."""

    # --- files -------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the file, without an index of an earlier one. Raises DiskFull, DiskReadOnly, StorageError."""
        self._disk.unlink(self.index_path)
        self.create_file()

    def create_file(self) -> None:
        """Make the file alone. Raises as `create`."""
        self._file = self._disk.open(self.path, create=True)
        if self._file.size():
            self.shut()
            raise StorageError(f"{self.path} exists already and isn't empty")

    def file(self) -> File:
        """Return the open file, reopening it if it was shut.

        Raises:
            OffsetOutOfRange: the segment was dropped meanwhile.
            StorageError.
        """
        if self._file is None:
            if self.retired:
                raise OffsetOutOfRange(f"the offsets from {self.base_offset} to {self.end_offset} were dropped")
            self._file = self._disk.open(self.path)
        return self._file

    @property
    def has_index(self) -> bool:
        """Whether there is an index file, for any part of the segment."""
        return self.indexed_bytes != _NO_INDEX

    @property
    def is_sealed(self) -> bool:
        """Whether the index file covers the whole segment."""
        return self.indexed_bytes == self.size_bytes

    @property
    def is_shut(self) -> bool:
        """Whether the segment has no open file."""
        return self._file is None

    def shut(self) -> None:
        """Close the file until it is needed again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def unload(self) -> None:
        """Shut the file and drop everything from memory that is also in the index file."""
        self.shut()
        self._hints.clear()
        if self.is_sealed:
            self._index = None

    def unlink(self) -> None:
        """Delete the segment's files. Raises StorageError."""
        self.retired = True
        self.shut()
        # The index goes first: left alone, it could be taken for the index of a later segment of that name.
        self._disk.unlink(self.index_path)
        self._disk.unlink(self.path)

    def discard(self) -> None:
        """Delete the file, beside which there is no index. Raises StorageError."""
        self._disk.unlink(self.path)

    def take_place_of(self, former: Segment) -> None:
        """Move the file of this segment, which is synced and shut, to the place of a former one with the same offsets,
        whose index is deleted. Durable after `sync_dir`. Raises StorageError: the former one is in its place.
        """
        self._disk.unlink(former.index_path)
        self._disk.rename(self.path, former.path)
        self.path = former.path
        former.retired = True
        former.shut()

    async def facts_of_index(self) -> bytes:
        """The encoded facts in the index file; empty if it is damaged or missing. Raises StorageError."""
        return encoded_facts(await self._index_file_bytes())

    async def sync(self) -> None:
        """Sync the whole file. Raises SyncFailed."""
        await self.file().sync()

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, batch: RecordBatch) -> None:
        """Write a stamped batch after the last one. Raises DiskFull, StorageError: nothing has changed."""
        file = self._file
        if file is None:
            file = self.file()
        file.write((batch.message,))
        self._note(batch.size, batch.end_offset, batch.append_time_ms, batch.max_timestamp_ms)

    def is_full_for(self, batch: RecordBatch, waiting_bytes: int, settings: SegmentedLogSettings) -> bool:
        """Whether a copy belongs into the next segment; `waiting_bytes` come before it."""
        if self.size_bytes and batch.append_time_ms - self.first_append_ms >= settings.segment_age_ms:
            return True
        held_bytes = self.size_bytes + waiting_bytes
        return held_bytes > 0 and held_bytes + batch.size > settings.segment_bytes_max

    def append_copies(self, batches: Sequence[RecordBatch]) -> None:
        """Write stamped batches after the last one, all or none. Raises DiskFull, StorageError: nothing has changed."""
        self.file().write([batch.message for batch in batches])
        for batch in batches:
            self._note(batch.size, batch.end_offset, batch.append_time_ms, batch.max_timestamp_ms)

    def _note(self, size: int, end_offset: int, append_ms: int, max_timestamp_ms: int) -> None:
        position = self.size_bytes
        if position >= self._entry_at:
            assert self._index is not None, "the index of a growing segment is in memory"
            self._index.add(self.end_offset, position, self.max_timestamp_ms)
            self._entry_at = position + self._index_interval_bytes
        if not position:
            self.first_append_ms = append_ms
        self.last_position = position
        self.size_bytes = position + size
        self.end_offset = end_offset
        self.last_append_ms = append_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms

    # --- scanning ----------------------------------------------------------------------------------------------------

    async def scan(self) -> Damage | None:
        """Record whole, valid batches after the known ones; returns the damage that stopped the scan."""
        file = self.file()
        file_bytes = file.size()
        wanted = SCAN_BYTES
        while self.size_bytes < file_bytes:
            position = self.size_bytes
            view = memoryview(await file.read(position, wanted))
            try:
                damage = self._note_batches(view)
                if damage is not None:
                    return damage
                wanted = SCAN_BYTES
                if self.size_bytes == position:
                    wanted = batch_bytes(view, 0) if len(view) >= HEAD_BYTES else file_bytes
                    if position + wanted > file_bytes or len(view) >= wanted:
                        return Damage(position, self.end_offset, "the last batch is cut short")
            except (BatchMalformed, BatchCorrupt) as error:
                return Damage(self.size_bytes, self.end_offset, error.text)
        return None

    def _note_batches(self, view: memoryview) -> Damage | None:
        """Record the whole batches in `view`. Raises BatchMalformed, BatchCorrupt at the first invalid one."""
        at = 0
        while at + HEAD_BYTES <= len(view) and at + (size := batch_bytes(view, at)) <= len(view):
            batch = RecordBatch(view[at : at + size])
            batch.check_stored()
            if batch.base_offset != self.end_offset:
                reason = f"a whole batch says that its offset is {batch.base_offset}"
                return Damage(self.size_bytes, self.end_offset, reason, certain=True)
            self._note(size, batch.end_offset, batch.append_time_ms, batch.max_timestamp_ms)
            self.scanned.note(batch)
            at += size
        return None

    # --- reading -----------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, bytes_max: int, *, at_least_one: bool, batches_max: int = READ_BATCHES_MAX
    ) -> list[RecordBatch]:
        """Read and check whole batches from the one with `offset` on, up to `bytes_max` bytes and `batches_max`
        batches.

        Raises:
            LogCorrupt: the first batch is damaged.
            OffsetOutOfRange: the segment was dropped meanwhile.
        """
        position = await self.locate(offset)
        batches = await self._read_piece(position, min(bytes_max, _PIECE_BYTES), batches_max, at_least_one)
        if not batches and not at_least_one:
            return batches
        if not batches or not batches[0].base_offset <= offset < batches[0].end_offset:
            raise self._corrupt(position, f"the batch there does not hold offset {offset}")
        read_bytes = sum([batch.size for batch in batches])
        # Read the rest in one piece of the size to be returned, by the usual size of batches here.
        more_max = batches_max - len(batches)
        wanted = min(bytes_max - read_bytes, more_max * read_bytes // len(batches))
        if wanted >= HEAD_BYTES and position + read_bytes < self.size_bytes:
            with suppress(LogCorrupt):  # The next read begins there and reports it.
                more = await self._read_piece(position + read_bytes, wanted, more_max, at_least_one=False)
                if more and more[0].base_offset == batches[-1].end_offset:
                    batches += more
                    read_bytes += sum([batch.size for batch in more])
        self._remember(batches[-1].end_offset, position + read_bytes)
        return batches

    async def _read_piece(
        self, position: int, bytes_max: int, batches_max: int, at_least_one: bool
    ) -> list[RecordBatch]:
        """Read whole batches from `position` on, over one buffer; the whole first batch if one is required."""
        view = await self._view(position, max(bytes_max, HEAD_BYTES))
        try:
            size = batch_bytes(view, 0)
            if size > bytes_max and not at_least_one:
                return []
            if size > len(view):
                view = await self._view(position, size)
            return whole_batches(view, max(bytes_max, size), batches_max)
        except BatchError as error:
            raise self._corrupt(position, error.text) from error

    def read_nowait(self, offset: int, bytes_max: int) -> Sequence[RecordBatch | StoredBatch]:
        """Return batches from the one that begins at `offset`, up to `bytes_max` bytes: large ones in place, small ones
        read.

        Empty if no earlier reader stopped at `offset`, if there are many small batches, or if they are not in the page
        cache. `read` handles damage. Raises StorageError.
        """
        position = 0 if offset == self.base_offset else self._hints.get(offset)
        file = self._file
        if position is None or file is None:
            return ()
        head = self._cached_head(file, position, offset)
        if head is None:
            return ()
        if head.size < REGION_BYTES_MIN:
            return self._cached(file, position, max(bytes_max, head.size))
        return self._in_place(file, position, head, bytes_max)

    def _in_place(self, file: File, position: int, head: Head | None, bytes_max: int) -> list[StoredBatch]:
        """Return large batches, the first with `head`, reading only their heads."""
        batches: list[StoredBatch] = []
        while head is not None and head.size >= REGION_BYTES_MIN and len(batches) < READ_BATCHES_MAX:
            bytes_max -= head.size
            if position + head.size > self.size_bytes or (batches and bytes_max < 0):
                break
            region = file.region(position, head.size)
            batches.append(
                StoredBatch(
                    head.base_offset,
                    head.end_offset,
                    head.record_count,
                    head.size,
                    head.format,
                    region,
                    head.producer_id,
                    head.attributes,
                )
            )
            position += head.size
            head = self._cached_head(file, position, head.end_offset)
        if batches:
            self._remember(batches[-1].end_offset, position)
        return batches

    def _cached(self, file: File, position: int, bytes_max: int) -> list[RecordBatch]:
        """Return small batches up to `bytes_max`, if all of them are in the page cache."""
        wanted = min(bytes_max, self.size_bytes - position)
        if wanted > _CACHED_BYTES_MAX or (data := file.read_cached(position, wanted)) is None:
            return []
        try:
            batches = whole_batches(memoryview(data), wanted, READ_BATCHES_MAX)
        except BatchError:
            return []
        if not batches:
            return []
        self._remember(batches[-1].end_offset, position + sum([batch.size for batch in batches]))
        return batches

    def _cached_head(self, file: File, position: int, offset: int) -> Head | None:
        """The head of the batch at `position`, if there is one and it begins at `offset`."""
        if position >= self.size_bytes:
            return None
        data = file.read_cached(position, HEAD_BYTES)
        if data is None:
            return None
        try:
            head = head_at(memoryview(data), 0)
        except BatchError:
            return None
        return head if head.base_offset == offset else None

    def _remember(self, offset: int, position: int) -> None:
        """Remember the position at which a reader will continue."""
        self._hints[offset] = position
        if len(self._hints) > _HINTS_MAX:
            del self._hints[next(iter(self._hints))]

    async def _view(self, position: int, bytes_max: int) -> memoryview:
        """Read up to `bytes_max` bytes, at least a head. Raises LogCorrupt if the file has become shorter."""
        wanted = min(bytes_max, self.size_bytes - position)
        view = memoryview(await self.file().read(position, wanted))
        if len(view) < max(wanted, HEAD_BYTES):
            raise self._corrupt(position, f"the file ends {counted(wanted - len(view), 'byte')} too early")
        return view

    def _corrupt(self, position: int, reason: str) -> LogCorrupt:
        return LogCorrupt(f"{self.path} is damaged at byte {position}: {reason}")

    async def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset`, which lies in this segment. Raises LogCorrupt."""
        position = self._hints.get(offset)
        if position is not None:
            return position
        entry_offset, before = (await self.index()).entry_before(offset)
        if entry_offset == offset:
            return before
        found = await self._walk(before, lambda head: head.end_offset > offset)
        if found is None:
            raise self._corrupt(before, f"no batch from there on holds offset {offset}")
        return found[0]

    async def head_of(self, offset: int) -> Head:
        """The head of the batch that holds `offset`. Raises LogCorrupt."""
        return await self.head(await self.locate(offset))

    async def head(self, position: int) -> Head:
        """The head of the batch at `position`. Raises LogCorrupt."""
        try:
            return head_at(await self._view(position, HEAD_BYTES), 0)
        except BatchError as error:
            raise self._corrupt(position, error.text) from error

    async def offset_at(self, timestamp_ms: int, start: int) -> int | None:
        """The first batch, or `start` in it, with a timestamp at or after `timestamp_ms`. Raises LogCorrupt."""
        if self.max_timestamp_ms < timestamp_ms:
            return None
        index = await self.index()
        position = max(index.entry_before(start)[1], index.position_before_time(timestamp_ms))
        found = await self._walk(
            position, lambda head: head.max_timestamp_ms >= timestamp_ms and head.end_offset > start
        )
        return max(found[1].base_offset, start) if found is not None else None

    async def _walk(self, position: int, wanted: Callable[[Head], bool]) -> tuple[int, Head] | None:
        """The first batch from `position` on whose head is `wanted`, with its position. Reads heads only."""
        while position < self.size_bytes:
            view = await self._view(position, self._index_interval_bytes)
            at = 0
            try:
                while at + HEAD_BYTES <= len(view):
                    head = head_at(view, at)
                    if wanted(head):
                        return position + at, head
                    at += head.size
            except BatchError as error:
                raise self._corrupt(position + at, error.text) from error
            position += at
        return None

    # --- the index file ----------------------------------------------------------------------------------------------

    async def index(self) -> SparseIndex:
        """The index, read or rebuilt if it isn't in memory. Raises LogCorrupt, StorageError."""
        if self._index is None:
            self._index = decode_entries(await self._index_file_bytes()) or await self._rebuilt()
        return self._index

    async def facts_at_end(self, before: LogFacts | None) -> LogFacts | None:
        """The log's facts at the end of this segment: from its index file and the batches scanned after it, or from the
        whole segment and the facts `before`; None if these are needed and None.

        Raises LogCorrupt, StorageError.
        """
        scanned = self.scanned
        if self.has_index:
            snapshot = decode_facts(await self._index_file_bytes())
            if snapshot is not None:
                before = snapshot
            elif before is not None:
                scanned = (await self._scanned_again()).scanned
        if before is not None:
            before.extend(scanned)
        return before

    async def _rebuilt(self) -> SparseIndex:
        logger.warning("%(file)s is missing or damaged and is rebuilt", {"file": self.index_path})
        other = await self._scanned_again()
        assert other._index is not None, "a scanned segment has an index"
        return other._index

    async def _scanned_again(self) -> Segment:
        other = Segment(self._disk, self.path.removesuffix(".log"), self.base_offset, self._index_interval_bytes)
        try:
            damage = await other.scan()
        finally:
            other.shut()
        if damage is not None and damage.position < self.size_bytes:  # Later damage is judged by the caller.
            raise self._corrupt(damage.position, damage.reason)
        return other

    async def _index_file_bytes(self, bytes_max: int | None = None) -> bytes:
        if not self._disk.exists(self.index_path):
            return b""
        file = self._disk.open(self.index_path)
        try:
            return bytes(await file.read(0, bytes_max if bytes_max is not None else max(file.size(), 1)))
        finally:
            file.close()

    async def write_index(self) -> None:
        """Write the index file of the segment, which must be synced; durable after `sync_dir`.

        Raises DiskFull, StorageError, SyncFailed, LogCorrupt.
        """
        await self.index()
        await self.put_index(self.index_image(self.facts))
        self.facts = b""

    def index_image(self, facts: bytes) -> IndexImage:
        """Make the index file of the segment's present content, with a snapshot of the log's facts at its end. The
        index must be in memory."""
        assert self._index is not None, "the index of a growing segment is in memory"
        summary = Summary(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            self.last_position,
            self.max_timestamp_ms,
            self.first_append_ms,
            self.last_append_ms,
        )
        return IndexImage(self.size_bytes, encode_index(summary, self._index, facts))

    async def put_index(self, image: IndexImage) -> None:
        """Put an index file in place; its bytes must be synced. Durable after `sync_dir`. Raises as `write_index`."""
        temporary = f"{self.index_path}.tmp"
        self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.write((image.data,))
            await file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, self.index_path)
        self.indexed_bytes = image.covered_bytes

    async def read_summary(self) -> Summary | None:
        """Read the index file's summary; None if there is no valid index of this segment."""
        summary = decode_summary(await self._index_file_bytes(HEADER_BYTES))
        return summary if summary is not None and summary.base_offset == self.base_offset else None

    async def adopt(self, summary: Summary) -> bool:
        """Accept `summary` if it matches the file's size, its first head and its last head. Raises StorageError."""
        if self.file().size() < summary.size_bytes:
            return False
        if not summary.size_bytes:
            self.indexed_bytes = 0
            return True
        self.size_bytes = summary.size_bytes
        try:
            first, last = await self.head(0), await self.head(summary.last_position)
        except LogCorrupt:
            self._forget()
            return False
        agreed = first.base_offset == summary.base_offset and last.end_offset == summary.end_offset
        if not agreed or summary.last_position + last.size != summary.size_bytes:
            self._forget()
            return False
        self.end_offset, self.last_position = summary.end_offset, summary.last_position
        self.max_timestamp_ms = summary.max_timestamp_ms
        self.first_append_ms, self.last_append_ms = summary.first_append_ms, summary.last_append_ms
        self.indexed_bytes = summary.size_bytes
        self._index = None
        return True

    async def grow(self) -> None:
        """Prepare for appends: load the index and open the file. Raises LogCorrupt, StorageError."""
        index = await self.index()
        self._entry_at = index.positions[-1] + self._index_interval_bytes if len(index) else 0
        self.file()

    async def cut(self) -> None:
        """Drop everything after the last whole batch, durably. Raises StorageError, SyncFailed."""
        file = self.file()
        file.truncate(self.size_bytes)
        await file.sync()
