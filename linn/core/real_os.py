"""What the disk and the network of `RealEnv` share: an OSError's reason, and what one call with many buffers takes."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from linn.core.flat_message import Buffer

IOV_MAX = 1024
"""Buffers that Linux takes in one call (UIO_MAXIOV)."""


def reason(error: OSError) -> str:
    """Why a call failed, for the end of a line."""
    return "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error))


def without_first(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """`buffers` without their first `count` bytes, by views."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []
