"""Events of a consumer group, as rows of the group log.

Laws: a record is about one group and carries its name; applying all records of a name in order to a fresh group
restores its generation and its committed offsets, and a forget row resets the group. The last row about a partition
counts, so a snapshot is just more rows, and records before a snapshot may be trimmed.

Layout: one version byte, the name's length as u8, the name in UTF-8, then rows of 16 bytes, little-endian: kind u8,
zero u8, zero u16, partition u32, value i64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from linn.core.errors.tree import LogCorrupt

GROUP_EVENT_VERSION: Final = 1
GROUP_NAME_BYTES_MAX: Final = 255
"""Limit of a name whose length is one byte."""

Row = tuple[int, int, int, int, int]
"""(kind, zero, zero, partition, value)"""

_ROW = struct.Struct("<BBHIq")


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """The group's members changed for the `generation`th time."""

    kind: ClassVar[int] = 1
    generation: int

    def row(self) -> Row:
        return (self.kind, 0, 0, 0, self.generation)


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """The group continues at `offset` in a partition."""

    kind: ClassVar[int] = 2
    partition: int
    offset: int

    def row(self) -> Row:
        return (self.kind, 0, 0, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class GroupForgotten:
    """The group was deleted; later rows under its name are about a new group."""

    kind: ClassVar[int] = 3

    def row(self) -> Row:
        return (self.kind, 0, 0, 0, 0)


GroupEvent = GenerationStarted | OffsetCommitted | GroupForgotten


def encode_group_events(group: str, events: Iterable[GroupEvent]) -> bytes:
    """The events as one record of the group log. The name has 1 to GROUP_NAME_BYTES_MAX bytes."""
    name = group.encode()
    assert 0 < len(name) <= GROUP_NAME_BYTES_MAX
    rows = [_ROW.pack(*event.row()) for event in events]
    return b"".join([bytes((GROUP_EVENT_VERSION, len(name))), name, *rows])


def decode_group_events(data: bytes | bytearray | memoryview) -> tuple[str, list[GroupEvent]]:
    """The group's name and the events of one record of the group log.

    Raises:
        LogCorrupt: another version, half a row, a name that is none, or a row that no group can have written.
    """
    view = memoryview(data)
    if len(view) < 2 or view[0] != GROUP_EVENT_VERSION or not view[1]:
        raise LogCorrupt("a record of the group log has a version that this broker can't read, or no name")
    rows = view[2 + view[1] :]
    if len(view) < 2 + view[1] or len(rows) % _ROW.size:
        raise LogCorrupt("a record of the group log ends inside its name or a row")
    try:
        name = str(view[2 : 2 + view[1]], "utf-8")
    except UnicodeDecodeError as error:
        raise LogCorrupt("a record of the group log has a name that is not UTF-8") from error
    return name, [_decode_row(row) for row in _ROW.iter_unpack(rows)]


def _decode_row(row: Row) -> GroupEvent:
    kind, _, _, partition, value = row
    event: GroupEvent
    if kind == OffsetCommitted.kind:
        event = OffsetCommitted(partition, value)
    elif kind == GroupForgotten.kind:
        event = GroupForgotten()
    else:
        event = GenerationStarted(value)
    if event.row() != row or value < 0:
        raise LogCorrupt(f"the group log has a row that no broker can have written: {row}")
    return event
