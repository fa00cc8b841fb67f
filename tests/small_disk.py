"""Disks with little room: a small file system, or a quota."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

_STEP_BYTES = 1 << 16
_LEFT_BYTES = 100_000


class SmallDisk:
    """A folder with a file system of its own, and a ballast file that fills what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, pid: int = 0) -> None:
        """Leave no room at all."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_STEP_BYTES, os.sysconf("SC_PAGE_SIZE")):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
        assert self.is_full()

    def is_full(self) -> bool:
        """Whether not even a new page can be had."""
        try:
            with (self.folder / "probe").open("wb", buffering=0) as file:
                file.write(b"x")
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            (self.folder / "probe").unlink(missing_ok=True)
        return False

    def make_room(self, pid: int = 0) -> None:
        """Give everything back."""
        self._ballast.unlink()


class FileSizeQuota:
    """The limit of one process on the size of a file (RLIMIT_FSIZE): it needs no privilege, and ends with the process.

    What is left is the same for each file, so the limit is set a little above the largest.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def fill(self, pid: int) -> None:
        """Leave the process next to no room."""
        largest = max(path.stat().st_size for path in self.folder.rglob("*.log"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + _LEFT_BYTES, resource.RLIM_INFINITY))

    def make_room(self, pid: int) -> None:
        """Lift the limit."""
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


Scarce = SmallDisk | FileSizeQuota
