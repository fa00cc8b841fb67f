"""A piece of a file on its way to a connection, which this process never reads (Kafka's zero copy: sendfile(2))."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from linn.core.batch.flat_message import Buffer


class FileRegion(Protocol):
    """What a `Stream` sends from a file of the same Env.

    Its bytes are whole when it is made and are never written again. It outlives the file's `close` and its name, and
    keeps disk space until it is dropped.
    """

    def __len__(self) -> int: ...

    def behind(self, count: int) -> FileRegion:
        """What is left behind the first `count` bytes."""


Sendable = Buffer | FileRegion
"""What a connection sends: memory, or a piece of a file."""


def behind(sendables: Sequence[Sendable], count: int) -> list[Sendable]:
    """`sendables` without their first `count` bytes; nothing is copied."""
    for index, item in enumerate(sendables):
        if count < len(item):
            rest = memoryview(item)[count:] if isinstance(item, Buffer) else item.behind(count)
            return [rest, *sendables[index + 1 :]]
        count -= len(item)
    return []
