"""Helpers of RealEnv's disk and network: the reason of an OSError, and the limit of buffers per call."""

from __future__ import annotations

import errno

IOV_MAX = 1024
"""Buffers that Linux accepts in one call (UIO_MAXIOV)."""


def reason(error: OSError) -> str:
    """The reason of a failed call, worded as the end of a message."""
    return "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error))
