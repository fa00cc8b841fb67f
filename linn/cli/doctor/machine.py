"""Memory and disk of this machine, as far as the process may use them, within its cgroup."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from linn.core.env.real.process import RealProcess


class DiskSpace(NamedTuple):
    """Size of a file system, and free space in it."""

    total_bytes: int
    free_bytes: int


def memory_bytes() -> int:
    """Return the memory that this process may use."""
    return RealProcess().memory_bytes_max()


def existing_part(path: str) -> Path:
    """Return the path, or its nearest parent that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def disk_space(path: str) -> DiskSpace | None:
    """Return the space of the file system where `path` is, or will be; None where it is not known."""
    try:
        usage = shutil.disk_usage(existing_part(path))
    except OSError:
        return None
    return DiskSpace(usage.total, usage.free)
