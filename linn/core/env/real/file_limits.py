"""Limits on open files (RLIMIT_NOFILE) of this process."""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple


class FileLimits(NamedTuple):
    """Maximum number of open descriptors; "unlimited" is a very large number."""

    soft: int
    hard: int


def file_limits() -> FileLimits:
    """Return the current limits."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = (limit if limit != unlimited else 1 << 62 for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    return FileLimits(soft, hard)


def raise_file_limit() -> FileLimits:
    """Raise the soft limit to the hard limit, and return the resulting limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limits()
