"""What the disk and the network of `RealEnv` share: an OSError's reason, and how many buffers one call takes."""

from __future__ import annotations

import errno

IOV_MAX = 1024
"""Buffers that Linux takes in one call (UIO_MAXIOV)."""


def reason(error: OSError) -> str:
    """Why a call failed, for the end of a line."""
    return "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error))
