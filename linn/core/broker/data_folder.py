"""The data folder of a broker: made durably, and locked, so that no two processes use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from linn.core.env.env import Disk


class DataFolder:
    """The folder of one broker."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._unlock: Callable[[], None] | None = None

    async def open(self) -> None:
        """Make the folder and its missing parents so that a power failure does not remove them, and lock it.

        Raises DataDirLocked, DiskReadOnly, DiskFull, StorageError, SyncFailed.
        """
        folder = PurePosixPath(self._path)
        missing = [place for place in (folder, *folder.parents) if not self._disk.exists(str(place))]
        self._disk.make_dir(self._path)
        for place in missing:
            await self._disk.sync_dir(str(place.parent))
        self._unlock = self._disk.lock(f"{self._path}/lock")

    def release(self) -> None:
        """Let another process use it. Idempotent."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
