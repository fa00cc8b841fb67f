"""Events of consumer groups, as records of a group log.

Laws: applying all records of a log in order, starting without groups, restores each group's epoch and committed
offsets. The last event about a partition counts. A snapshot of a group is just more events, so records before it may be
trimmed; a restart record replaces all records before it, for all groups of its log.

Layout: one version byte, one byte that is 1 for a restart record, and a MessagePack array of [group, events].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from linn.core.errors.tree import LogCorrupt

GROUP_EVENT_VERSION: Final = 2

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class EpochStarted(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """The group's members or their topics changed."""

    epoch: Number


class OffsetCommitted(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """The group continues at `offset` in a partition."""

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    offset: Number
    text: str = ""
    """Text that the member stores with the offset."""
    leader_epoch: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Leader epoch of the record before `offset`; -1: unknown."""
    topic_id: bytes = b""
    """Id of the topic; empty: unknown."""


class TopicForgotten(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """The group's offsets in a topic were dropped."""

    topic: str


class GroupForgotten(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """The group was deleted; later events under its name belong to a new group."""


class OffsetPending(msgspec.Struct, frozen=True, array_like=True, tag=5, forbid_unknown_fields=True):
    """A transaction moves the group to an offset, if it is committed."""

    producer_id: Number
    number: Number
    offset: OffsetCommitted


class PendingEnded(msgspec.Struct, frozen=True, array_like=True, tag=6, forbid_unknown_fields=True):
    """A transaction with offsets of the group in this topic has ended: they are committed, or dropped."""

    producer_id: Number
    number: Number
    is_commit: bool


GroupEvent = EpochStarted | OffsetCommitted | TopicForgotten | GroupForgotten | OffsetPending | PendingEnded
Entry = tuple[str, Sequence[GroupEvent]]
"""A group's name, and its events."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[Annotated[str, msgspec.Meta(min_length=1)], list[GroupEvent]]])


def encode_group_events(entries: Iterable[Entry], *, restart: bool = False) -> bytes:
    """Encode the events of groups as one record of the group log."""
    return bytes((GROUP_EVENT_VERSION, restart)) + _encoder.encode(list(entries))


def decode_group_events(data: bytes | bytearray | memoryview) -> tuple[bool, Sequence[Entry]]:
    """Decode a record: whether it is a restart record, and its entries. Raises LogCorrupt if it can't be valid."""
    view = memoryview(data)
    if len(view) < 2 or view[0] != GROUP_EVENT_VERSION or view[1] > 1:
        raise LogCorrupt("a record of the group log has a version that this broker can't read")
    try:
        return bool(view[1]), _decoder.decode(view[2:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogCorrupt(f"a record of the group log can't be read: {error}") from error
