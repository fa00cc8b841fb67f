"""SimFile: a handle on a file of `sim_disk.SimDisk`."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from linn.core.batch.flat_message import Buffer
from linn.core.errors.tree import DiskFull, StorageError, SyncFailed
from linn.testing.sim_device import SimDevice
from linn.testing.sim_platter import Inode


class SimFileRegion:
    """Bytes of a file, which the region keeps alive."""

    def __init__(self, inode: Inode, position: int, size: int) -> None:
        self._inode = inode
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def behind(self, count: int) -> SimFileRegion:
        """Return the region without its first `count` bytes."""
        return SimFileRegion(self._inode, self._position + count, self._size - count)

    def read(self, bytes_max: int) -> bytes:
        return self.content()[:bytes_max]

    def content(self) -> bytes:
        """Return the present bytes; fewer if the file was cut."""
        return bytes(self._inode.data[self._position : self._position + self._size])


class SimFile:
    """Handle on a file. As with `RealFile`, a file has one writing handle at a time; here a second one is an error."""

    def __init__(self, disk: SimDevice, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._end = len(inode.data)
        self._closed = False

    def _live(self, deed: str) -> Inode:
        self._disk.check_alive()
        if self._closed:
            raise StorageError(f"can't {deed} {self._path}: it is closed")
        return self._inode

    def _writer(self, deed: str) -> Inode:
        inode = self._live(deed)
        assert self._end == len(inode.data), f"two handles write {self._path}"
        self._disk.check_writable(deed, self._path)
        return inode

    def write(self, buffers: Sequence[Buffer]) -> int:
        inode, disk, data = self._writer("append to"), self._disk, b"".join(buffers)
        dying = disk.begin("write", self._path)
        room = disk.room_bytes()
        if len(data) > room:
            # As with the real file: write what fits, then cut it off. A crash may keep the write without the cut.
            disk.change(inode, self._end, data[:room])
            disk.change(inode, self._end, None)
            disk.end(dying)
            raise DiskFull(f"can't append to {self._path}: No space left on device")
        disk.change(inode, self._end, data)
        self._end += len(data)
        disk.end(dying, torn=inode)
        return len(data)

    def write_at(self, data: Buffer, position: int) -> None:
        inode, disk = self._writer("write"), self._disk
        dying = disk.begin("write_at", self._path)
        if position + len(data) - self._end > disk.room_bytes():
            disk.end(dying)
            raise DiskFull(f"can't write {self._path}: No space left on device")
        disk.change(inode, position, bytes(data))
        self._end = len(inode.data)
        disk.end(dying, torn=inode)

    def size(self) -> int:
        return len(self._live("measure").data)

    def truncate(self, size: int) -> None:
        inode = self._writer("truncate")
        assert size <= self._end, "truncate cuts, it does not extend"
        dying = self._disk.begin("truncate", self._path)
        self._disk.change(inode, size, None)
        self._end = size
        self._disk.end(dying)

    async def read(self, position: int, bytes_max: int) -> bytearray:
        self._live("read")
        if self._disk.rng.random() < 0.5:
            await trio.lowlevel.checkpoint()
        else:
            # The real file does not yield for bytes in the page cache.
            await trio.lowlevel.checkpoint_if_cancelled()
        self._disk.check_alive()
        return self._inode.data[position : position + max(0, bytes_max)]

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Read as if half of the file were not in the page cache, a different half each time."""
        data = self._live("read").data[position : position + size]
        return bytes(data) if len(data) == size and self._disk.rng.random() < 0.5 else None

    def region(self, position: int, size: int) -> SimFileRegion:
        return SimFileRegion(self._live("read"), position, size)

    async def sync(self) -> None:
        try:
            inode = self._live("sync")
        except StorageError as error:
            raise SyncFailed(error.text) from error
        await self._disk.sync_node("sync", self._path, inode)

    def close(self) -> None:
        self._closed = True
