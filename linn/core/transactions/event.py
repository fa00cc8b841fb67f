"""Events of transactions, as records of their log.

Laws: applying all records in order restores each name's producer id, its epoch, and its last committed transaction.
Only commits are logged: any other transaction is aborted. A restart record replaces all records before it.

Layout: one version byte, one byte that is 1 for a restart record, and a MessagePack array of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from linn.core.errors.tree import LogCorrupt
from linn.core.groups.event import OffsetCommitted

TRANSACTION_EVENT_VERSION: Final = 1
IDENTITY_CHARACTERS_MAX: Final = 200
"""Limit of a commit's identity: a digest and a word or two, kept in memory for each of 10,000 names."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Named(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """A client took over a name: its transactions have this producer id and epoch, and numbers from `number` on."""

    name: Name
    producer_id: Number
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
    number: Number
    opened_ms: Number
    resumed: Annotated[int, msgspec.Meta(ge=-1, le=2**16 - 1)] = -1
    """The first epoch of the same client, if it has opened the name again since; -1: `epoch` is its first."""


class Committed(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """The decision to commit a transaction: the writes of these producers count."""

    name: Name
    number: Number
    branches: list[Number]
    offsets: list[tuple[str, OffsetCommitted]] = []
    """(group, offset) pairs that take effect with the commit."""
    sequence: Number = 0
    """The highest sequence that a client has given a commit of this name; 0: none."""
    identity: Annotated[str, msgspec.Meta(max_length=IDENTITY_CHARACTERS_MAX)] = ""
    """The client's name for the work committed under that sequence."""


class OffsetsApplied(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """The offsets of the last commit are in the groups' log."""

    name: Name


class NameForgotten(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """The name was dropped after long disuse."""

    name: Name


TransactionEvent = Named | Committed | OffsetsApplied | NameForgotten

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[TransactionEvent])


def encode_transaction_events(events: Iterable[TransactionEvent], *, restart: bool = False) -> bytes:
    """Encode events as one record of the log."""
    return bytes((TRANSACTION_EVENT_VERSION, restart)) + _encoder.encode(list(events))


def decode_transaction_events(data: bytes | bytearray | memoryview) -> tuple[bool, Sequence[TransactionEvent]]:
    """Decode a record: whether it is a restart record, and its events. Raises LogCorrupt if it can't be valid."""
    view = memoryview(data)
    if len(view) < 2 or view[0] != TRANSACTION_EVENT_VERSION or view[1] > 1:
        raise LogCorrupt("a record of the transactions' log has a version that this broker can't read")
    try:
        return bool(view[1]), _decoder.decode(view[2:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogCorrupt(f"a record of the transactions' log can't be read: {error}") from error
