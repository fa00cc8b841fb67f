"""A piece of a file, sent to a connection without being read by this process (Kafka's zero copy: sendfile(2))."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from linn.core.batch.flat_message import Buffer


class FileRegion(Protocol):
    """Bytes of a file that a `Stream` of the same Env can send.

    All its bytes are in the file when it is made, and are never overwritten. It stays valid after the file is closed or
    deleted, and keeps its disk space until it is dropped.
    """

    def __len__(self) -> int: ...

    def behind(self, count: int) -> FileRegion:
        """The region without its first `count` bytes."""

    def read(self, bytes_max: int) -> bytes:
        """Read its first bytes, at most `bytes_max`; b"" if the file was cut. Bytes that are not in the page cache
        block the loop on the disk. Raises StorageError."""


Sendable = Buffer | FileRegion
"""A part of a frame to send: memory, or a piece of a file."""


def behind(sendables: Sequence[Sendable], count: int) -> list[Sendable]:
    """Return `sendables` without their first `count` bytes; nothing is copied."""
    for index, item in enumerate(sendables):
        if count < len(item):
            rest = memoryview(item)[count:] if isinstance(item, Buffer) else item.behind(count)
            return [rest, *sendables[index + 1 :]]
        count -= len(item)
    return []
