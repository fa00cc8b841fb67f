"""Cap'n Proto messages made by hand, word by word, so that they can be wrong. https://capnproto.org/encoding.html"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

WORD: Final = 8
CORRELATION: Final = 7
MEMBERS: Final = (
    "hello", "welcome", "failed", "ping", "pong", "goodbye", "done", "publish", "published", "fetch", "fetched",
    "findOffset", "foundOffset", "subscribe", "subscribed", "unsubscribe", "credit", "deliver", "pull", "settle",
    "settled", "assigned", "describe", "description", "administer", "administered", "ended", "leaseEnded",
    "heartbeat", "seek", "commit", "resolve", "resolved", "openTransactions", "openedTransactions", "addBranch",
    "settleInTransaction", "endTransaction", "challenge", "authenticate", "peerChallenge", "peerProof", "peerWelcome",
    "openLane", "closeLane", "follow", "followed", "replicate", "replicated", "peerPong",
    "joinTransaction", "markTransaction", "openInbox", "inbox", "reply",
)  # fmt: skip
"""The union of Frame, in the schema's order."""
BYTES, POINTERS, STRUCTS = 2, 6, 7
"""Sizes of a list's elements, as its pointer has them. The fourth, 0, has no bits at all."""
ENTRIES_MAX: Final = 2**29 - 1
"""Largest count that a list's pointer can claim."""


def framed(*segments: bytes) -> bytes:
    """Segments behind their table, as on the wire."""
    sizes = [len(segment) // WORD for segment in segments]
    table = struct.pack(f"<{len(sizes) + 1}I", len(sizes) - 1, *sizes)
    return table + bytes(-len(table) % WORD) + b"".join(segments)


def struct_pointer(offset: int, data_words: int, pointers: int) -> bytes:
    """Encode a pointer to a struct `offset` words behind the pointer's own end."""
    return struct.pack("<iHH", offset << 2, data_words, pointers)


def list_pointer(offset: int, element: int, count: int) -> bytes:
    """Encode a pointer to a list; of structs, `count` is in words, and a tag comes first."""
    return struct.pack("<iI", offset << 2 | 1, count << 3 | element)


def tag(count: int, data_words: int, pointers: int) -> bytes:
    """The tag before a list of structs."""
    return struct.pack("<IHH", count << 2, data_words, pointers)


def far_pointer(segment: int, word: int, *, double: bool = False) -> bytes:
    """Encode a pointer to a landing pad in any segment."""
    return struct.pack("<II", 2 | double << 2 | word << 3, segment)


def padded(data: bytes) -> bytes:
    """Pad `data` to whole words."""
    return data + bytes(-len(data) % WORD)


def root(member: str | int, *, batches: int = 0, correlation: int = CORRELATION) -> bytes:
    """The root pointer and a Frame's numbers; what its one pointer leads to comes behind."""
    number = member if isinstance(member, int) else MEMBERS.index(member)
    return struct_pointer(0, 2, 1) + struct.pack("<QHHI", correlation, batches, number, 0)


def control(member: str | int, behind: bytes, *, batches: int = 0, correlation: int = CORRELATION) -> bytes:
    """A control message of one segment; `behind` begins with the pointer to the member's struct."""
    return framed(root(member, batches=batches, correlation=correlation) + padded(behind))


def text(data: bytes, offset: int = 0) -> bytes:
    """A pointer to Text with these bytes, the NUL among them if there is one, and the bytes."""
    return list_pointer(offset, BYTES, len(data)) + bytes(WORD * offset) + padded(data)


def flat(numbers: bytes, fields: Mapping[int, bytes | tuple[int, int]], count: int) -> bytes:
    """A message of numbers and `count` Data fields, as batches and bodies are.

    A field is its bytes, or what its pointer claims: where it begins, in words behind all pointers, and how many bytes.
    """
    pointers, data = b"", b""
    for place in range(count):
        field = fields.get(place)
        if field is None:
            pointers += bytes(WORD)
            continue
        at, size = field if isinstance(field, tuple) else (len(data) // WORD, len(field))
        pointers += list_pointer(count - place - 1 + at, BYTES, size)
        if not isinstance(field, tuple):
            data += padded(field)
    words = len(numbers) // WORD
    return framed(struct_pointer(0, words, count) + numbers + pointers + data)


# --- record batches --------------------------------------------------------------------------------------------------

NUMBERS = struct.Struct("<qqqiIIIqqqIHHBBHIQQQI4x")
BODY, ROUTES, ROUTE_INDEX, KEY_HASHES, PRIORITIES, DELAYS_MS, TTLS_MS, IDS = range(8)
FIELDS = 9
VALUE_OFFSETS, VALUES = 0, 1
"""Fields of a body; the others are left out here."""


def int32s(*numbers: int) -> bytes:
    """A column of offsets."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def body(values: list[bytes], others: Mapping[int, bytes | tuple[int, int]] | None = None) -> bytes:
    """A Body of these values, with other fields beside them or in their place."""
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    return flat(b"", {VALUE_OFFSETS: int32s(*ends), VALUES: b"".join(values), **(others or {})}, 13)


def batch(
    count: int,
    fields: Mapping[int, bytes | tuple[int, int]],
    *,
    codec: int = 0,
    format: int = 0,
    pair_count: int = 0,
    body_bytes: int | None = None,
) -> bytes:
    """A RecordBatch with a CRC that fits, whatever else is wrong with it."""
    content = fields.get(BODY, b"")
    size = body_bytes if body_bytes is not None else len(content) if isinstance(content, bytes) else 0
    numbers = NUMBERS.pack(0, 0, 0, 0, 0, 0, count, 1, 1, 0, 0, 0, 0, codec, format, pair_count, size, 0, 1, 0, count)
    return sealed(flat(numbers, fields, FIELDS))


def sealed(message: bytes) -> bytes:
    """A batch with the CRC that its bytes have."""
    crc = crc32c(message[52:], crc32c(message[:16]))
    return message[:48] + struct.pack("<I", crc) + message[52:]


def plain(values: list[bytes]) -> bytes:
    """A batch with nothing wrong."""
    return batch(len(values), {BODY: body(values)})
