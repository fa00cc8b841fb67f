"""The checkpoint of a log: the few facts that can't be derived from its segments, in a file of two slots.

Laws: a write replaces the older slot and is synced, so that one whole slot always exists; the file is never renamed or
grown after it was made, so that it can be written on a full disk. A file without a whole slot is damaged. A log that
was never synced has "checkpoint.new" instead, with any content. If there is a checkpoint, the names of its folders are
durable.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from linn.api import Disk, LogCorrupt
from linn.storage_engines.segmented_log.folder import sync_way_to

_MAGIC = b"LINNCKP1"
_SLOT = struct.Struct("<8sQqqqI")
_SLOT_BYTES = 4096
"""The largest sector in use: tearing one slot leaves the other."""
_NONE = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Facts about a log."""

    start: int
    """The first kept offset; earlier batches in the files have been dropped."""
    durable: int
    """The offset below which all records were on stable storage (or are dropped)."""
    cut: int | None = None
    """The offset of an unfinished `trim(after=cut)`; below the start: of an unfinished `restart_at(start)`."""


class CheckpointFile:
    """The file `checkpoint` in a log's folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/checkpoint"
        self._new_path = f"{folder}/checkpoint.new"
        self._sequence = 0

    async def read(self) -> Checkpoint | None:
        """Read the newest facts; None if there is no file. Raises LogCorrupt, SyncFailed, StorageError.

        A killed process may have left facts only in the page cache. Files must not be deleted because of facts that a
        power loss could undo, so the facts are synced before they are used.
        """
        if not self._disk.exists(self._path):
            return Checkpoint(0, 0) if self._disk.exists(self._new_path) else None
        file = self._disk.open(self._path)
        try:
            await file.sync()
            data = bytes(await file.read(0, 2 * _SLOT_BYTES))
        finally:
            file.close()
        found = [slot for at in (0, _SLOT_BYTES) if (slot := _decode(data[at : at + _SLOT.size])) is not None]
        if not found:
            raise LogCorrupt(f"{self._path} is damaged: neither of its two slots is whole")
        self._sequence, newest = max(found, key=lambda slot: slot[0])
        return newest

    @property
    def is_made(self) -> bool:
        """Whether the file exists."""
        return self._sequence > 0

    def prepare(self) -> None:
        """Reserve the space for the file of a new log, which begins at 0, without a sync; `create` turns it into the
        file.

        Raises DiskFull, StorageError: nothing was reserved.
        """
        self.forget()
        file = self._disk.open(self._new_path, create=True)
        try:
            file.write((bytes(2 * _SLOT_BYTES),))
        except BaseException:
            self.forget()
            raise
        finally:
            file.close()

    def forget(self) -> None:
        """Undo `prepare`."""
        self._disk.unlink(self._new_path)

    async def create(self, checkpoint: Checkpoint) -> None:
        """Create the file atomically, after its folders are durable.

        Raises DiskFull, StorageError, SyncFailed.
        """
        await sync_way_to(self._disk, self._folder)
        slot = _encode(1, checkpoint).ljust(_SLOT_BYTES, b"\0")
        file = self._disk.open(self._new_path, create=True)
        try:
            if file.size() == 2 * _SLOT_BYTES:
                file.write_at(slot, 0)
            else:
                file.truncate(0)
                file.write((slot, bytes(_SLOT_BYTES)))
            await file.sync()
        finally:
            file.close()
        self._disk.rename(self._new_path, self._path)
        await self._disk.sync_dir(self._folder)
        self._sequence = 1

    async def write(self, checkpoint: Checkpoint) -> None:
        """Replace the facts, or create the file; durable on return. Raises DiskFull, StorageError, SyncFailed."""
        if not self.is_made:
            await self.create(checkpoint)
            return
        file = self._disk.open(self._path)
        try:
            sequence = self._sequence + 1
            file.write_at(_encode(sequence, checkpoint), _SLOT_BYTES * ((sequence + 1) % 2))
            await file.sync()
            self._sequence = sequence
        finally:
            file.close()

    async def write_both(self, checkpoint: Checkpoint) -> None:
        """Replace the facts in both slots, so that later damage to one slot does not restore the former facts."""
        await self.write(checkpoint)
        await self.write(checkpoint)

    def unlink(self) -> None:
        """Delete the file."""
        self._disk.unlink(self._path)


def _encode(sequence: int, checkpoint: Checkpoint) -> bytes:
    cut = checkpoint.cut if checkpoint.cut is not None else _NONE
    slot = _SLOT.pack(_MAGIC, sequence, checkpoint.start, checkpoint.durable, cut, 0)[:-4]
    return slot + struct.pack("<I", crc32c(slot))


def _decode(slot: bytes) -> tuple[int, Checkpoint] | None:
    if len(slot) < _SLOT.size:
        return None
    magic, sequence, start, durable, cut, crc = _SLOT.unpack(slot)
    if magic != _MAGIC or crc != crc32c(slot[:-4]):
        return None
    return sequence, Checkpoint(start, durable, cut if cut != _NONE else None)
