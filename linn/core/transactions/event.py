"""Events of transactions, as records of their log.

Laws: applying all records in order restores each name: its owner, its branches, its last committed transaction, and
the number of the present one, which goes on; in a cluster, also the topics that the present one has joined, and those
in which the last one may not be marked yet. So whatever the coordinator tells is here first, an abort too. A restart
record replaces all records before it.

Layout: one version byte, one byte that is 1 for a restart record, and a MessagePack array of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from linn.core.errors.tree import LogCorrupt

TRANSACTION_EVENT_VERSION: Final = 3
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
    user: str = ""
    """The user of the client."""
    timeout_ms: Number = 0
    """Time for which a transaction may be open."""
    openings: list[int] = []
    """The clients' numbers of the last openings of the name, oldest first."""


class Committed(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """The decision to commit a transaction: the writes of these producers count."""

    name: Name
    number: Number
    branches: list[Number]
    sequence: Number = 0
    """The highest sequence that a client has given a commit of this name; 0: none."""
    identity: Annotated[str, msgspec.Meta(max_length=IDENTITY_CHARACTERS_MAX)] = ""
    """The client's name for the work committed under that sequence."""


class Branches(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """Producers may write in the transactions of a name."""

    name: Name
    branches: list[Number]
    dropped: Number = 0
    """The producer that made room for them; 0: none."""


class Aborted(msgspec.Struct, frozen=True, array_like=True, tag=5, forbid_unknown_fields=True):
    """A transaction was aborted, or several that their owner may have begun."""

    name: Name
    number: Number
    why: str = ""
    """The reason, for an owner that did not ask for it."""
    last: Number = 0
    """The last number, if there are several; 0: there is one."""


class Started(msgspec.Struct, frozen=True, array_like=True, tag=6, forbid_unknown_fields=True):
    """The broker runs in this boot of its machine, or has stopped in order."""

    boot_id: str
    """"": it has stopped, and everything is on stable storage."""


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=7, forbid_unknown_fields=True):
    """A producer may write in a topic with the present transaction, whose end is marked there.

    The name's own producer id: the transaction acks records of the topic, or commits offsets of groups in it.
    """

    name: Name
    number: Number
    branch: Number
    topic: Name
    topic_id: Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
    """Its UUID, as hexadecimal digits: another topic of that name has another."""


class Led(msgspec.Struct, frozen=True, array_like=True, tag=8, forbid_unknown_fields=True):
    """The coordinator that has appended this still leads if it is committed, and nothing else."""


class NameForgotten(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """The name was dropped after long disuse."""

    name: Name


NameEvent = Named | Branches | Joined | Committed | Aborted | NameForgotten
TransactionEvent = NameEvent | Started | Led

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
