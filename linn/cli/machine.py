"""What this machine has: memory, disk, descriptors. Numbers as the process may use them, so within its cgroup."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from pathlib import Path
from typing import NamedTuple

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class DiskSpace(NamedTuple):
    """Of the file system under a path."""

    total_bytes: int
    free_bytes: int


class FileLimits(NamedTuple):
    """How many descriptors a process may have open."""

    soft: int
    hard: int


def memory_bytes() -> int:
    """Memory that this process may use."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        # "max", a missing file and one that may not be read all mean: no limit of its own.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return min(found)


def existing_part(path: str) -> Path:
    """The path, or the nearest folder above it that is there."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def disk_space(path: str) -> DiskSpace | None:
    """Of the file system where `path` is, or will be; None where it can't be asked."""
    try:
        usage = shutil.disk_usage(existing_part(path))
    except OSError:
        return None
    return DiskSpace(usage.total, usage.free)


def file_limits() -> FileLimits:
    """RLIMIT_NOFILE; "unlimited" as a very large number."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = (limit if limit != unlimited else 1 << 62 for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    return FileLimits(soft, hard)
