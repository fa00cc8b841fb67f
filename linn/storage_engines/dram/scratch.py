"""Scratch files for batches of a dram log that exceed memory. Never synced, and never read by another process."""

from __future__ import annotations

from collections.abc import Iterator

from linn.api import Disk, OffsetOutOfRange, RecordBatch, StorageError
from linn.storage_engines.dram.memory import Bound
from linn.storage_engines.segmented_log.segment import Segment

_INDEX_INTERVAL_BYTES = 64 << 10


class ScratchFolder:
    """The folder of an engine's numbered scratch files."""

    def __init__(self, folder: str, disk: Disk, numbers: Iterator[int]) -> None:
        self._folder = folder
        self._disk = disk
        self._numbers = numbers

    def clear(self) -> None:
        """Delete the files of an earlier process. Raises StorageError."""
        if self._disk.exists(self._folder):
            for name in self._disk.list_dir(self._folder):
                self._disk.unlink(f"{self._folder}/{name}")

    def begin(self, base_offset: int) -> ScratchRun:
        """Begin an empty run in a new file. Raises DiskFull, DiskReadOnly, StorageError."""
        self._disk.make_dir(self._folder)
        path = f"{self._folder}/{next(self._numbers):020d}"
        run = ScratchRun(self._disk, path, base_offset)
        run.create()
        return run


class ScratchRun:
    """Consecutive batches in one file."""

    held_bytes = 0
    """Memory of the run; the file's index is too small to count."""

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self._path = path
        self._segment = Segment(disk, path, base_offset, _INDEX_INTERVAL_BYTES)

    def create(self) -> None:
        """Make the file. Raises DiskFull, StorageError."""
        self._segment.create()

    @property
    def base_offset(self) -> int:
        return self._segment.base_offset

    @property
    def end_offset(self) -> int:
        return self._segment.end_offset

    @property
    def size_bytes(self) -> int:
        return self._segment.size_bytes

    @property
    def last_append_ms(self) -> int:
        return self._segment.last_append_ms

    def append(self, batch: RecordBatch) -> None:
        """Write a stamped batch. Raises DiskFull, StorageError: nothing has changed."""
        self._segment.append(batch)

    async def read(self, offset: int, bytes_max: int, *, at_least_one: bool) -> list[RecordBatch]:
        """See `Segment.read`."""
        return await self._segment.read(offset, bytes_max, at_least_one=at_least_one)

    async def offset_at(self, timestamp_ms: int, start: int) -> int | None:
        """See `Segment.offset_at`."""
        return await self._segment.offset_at(timestamp_ms, start)

    def forget(self, before: int) -> None:
        """Do nothing: a file is freed only as a whole."""

    def droppable(self, bound: Bound, excess_bytes: int, *, newest: bool) -> int:
        """The end if the whole run exceeds a bound, otherwise the base. Size does not count for the `newest` run."""
        over = (excess_bytes > 0 and not newest) or bound.is_over(self.last_append_ms, self.end_offset)
        return self.end_offset if over and not bound.keeps(self.end_offset) else self.base_offset

    async def cut(self, after: int) -> None:
        """Drop the batches from offset `after` on, which must be a boundary. Raises OffsetOutOfRange, StorageError."""
        head = await self._segment.head_of(after)
        if head.base_offset != after:
            raise OffsetOutOfRange(f"no batch begins at offset {after}")
        self._segment.file().truncate(await self._segment.locate(after))
        self._segment.shut()
        self._segment = Segment(self._disk, self._path, self.base_offset, _INDEX_INTERVAL_BYTES)
        damage = await self._segment.scan()
        if damage is not None:
            raise StorageError(f"{self._segment.path} is damaged at byte {damage.position}: {damage.reason}")

    def drop(self) -> None:
        """Delete the file. Raises StorageError."""
        self._segment.unlink()
