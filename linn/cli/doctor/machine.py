"""What this machine has: memory, disk, descriptors. Numbers as the process may use them, so within its cgroup."""

from __future__ import annotations

import contextlib
import resource
import shutil
from pathlib import Path
from typing import NamedTuple

from linn.core.env.real.process import RealProcess


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
    return RealProcess().memory_bytes_max()


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


def raise_file_limit() -> FileLimits:
    """Let this process open as many files as it may let itself; the limits that hold then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limits()


def file_limits() -> FileLimits:
    """RLIMIT_NOFILE; "unlimited" as a very large number."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = (limit if limit != unlimited else 1 << 62 for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    return FileLimits(soft, hard)
