"""A Cap'n Proto message whose root struct holds numbers and Data fields only, written and read without copying.

`RecordBatch` and its `Body` are such messages. Written this way a batch is joined once, in one segment and at fixed
places where a broker can stamp it, and every Data field is read as a view of the frame. pycapnp would copy each field
in and out (measured in docs/adr/0002). The tests hold this module against pycapnp in both directions.

Layout (https://capnproto.org/encoding.html): segment table (8 bytes), root pointer (8), numbers, one pointer per Data
field, the fields' bytes, each padded to a word. Laws: one segment; the root pointer's offset is 0; a newer writer may
have more numbers than the reader knows, never fewer; trailing null pointers are left out, so that a message may have
fewer pointers than the schema, or more if the writer is newer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from linn.core.errors.tree import BatchMalformed, BatchTooLarge

WORD = 8
DATA_AT = 16
"""Offset of the root struct's numbers: after the segment table and the root pointer."""
_FIELD_BYTES_MAX = (1 << 29) - 1
_HEAD = struct.Struct("<IIIHH")
_ROOT_SIZE = struct.Struct("<HH")
_ROOT_SIZE_AT = 12
_PADDING = tuple(bytes(size) for size in range(WORD))

Buffer = bytes | bytearray | memoryview


class Parts(NamedTuple):
    """Buffers of a message that is not joined yet."""

    size: int
    buffers: Sequence[Buffer]

    def join(self) -> bytearray:
        """Join the buffers with one copy. Raises TypeError if one is not a buffer, or has items larger than a byte."""
        joined = bytearray().join(self.buffers)
        if len(joined) != self.size:
            raise TypeError(f"{self.size} items have {len(joined)} bytes")
        return joined


Field = Buffer | Parts | None


def encode(numbers: bytes, fields: Sequence[Field]) -> bytearray:
    """Lay out and join a message. Raises BatchTooLarge, TypeError."""
    return lay_out(numbers, fields).join()


def lay_out(numbers: bytes, fields: Sequence[Field]) -> Parts:
    """Lay out `numbers` (whole words) and Data `fields` as one single-segment message, in its form on the wire.

    `None` is an absent field: a null pointer, or no pointer if no field follows. An empty buffer is an empty field.

    Raises BatchTooLarge if a field is larger than a Cap'n Proto list can be (2^29 - 1 bytes).
    """
    assert len(numbers) % WORD == 0, "the data section is made of whole words"
    field_count = len(fields)
    while field_count and fields[field_count - 1] is None:
        field_count -= 1
    pointers: list[int] = []
    parts: list[Buffer] = []
    words_before = 0
    for index, field in enumerate(fields[:field_count]):
        if field is None:
            pointers.append(0)
            continue
        size = field.size if type(field) is Parts else len(field)
        if size > _FIELD_BYTES_MAX:
            raise BatchTooLarge(f"a field of {size} bytes, more than {_FIELD_BYTES_MAX}")
        offset = field_count - index - 1 + words_before
        pointers.append(1 | offset << 2 | 2 << 32 | size << 35)
        if type(field) is Parts:
            parts += field.buffers
        else:
            parts.append(field)  # type: ignore[arg-type]
        if size % WORD:
            parts.append(_PADDING[-size % WORD])
        words_before += -(-size // WORD)
    number_words = len(numbers) // WORD
    words = 1 + number_words + field_count + words_before
    head = _HEAD.pack(0, words, 0, number_words, field_count)
    return Parts(8 + words * WORD, [head, numbers, _pointers(field_count).pack(*pointers), *parts])


def check_head(message: memoryview, number_bytes: int) -> None:
    """Check that the message is one segment that begins with a root struct of at least `number_bytes` of numbers.

    Raises BatchMalformed.
    """
    total = len(message)
    if total < DATA_AT:
        raise BatchMalformed(f"a message of {total} bytes holds no root struct")
    segments, words, root, number_words, _ = _HEAD.unpack_from(message)
    if segments != 0 or 8 + words * WORD != total:
        raise BatchMalformed("the message is not one segment that fills its frame")
    if root != 0 or number_words * WORD < number_bytes:
        raise BatchMalformed("the root struct is not first in its segment, or has too few numbers")


def decode(message: memoryview, number_bytes: int, field_count: int) -> list[memoryview | None]:
    """The first `field_count` Data fields of a message, as views; the numbers lie at `DATA_AT`.

    Raises:
        BatchMalformed: the message is not one segment with the root struct first, has fewer numbers than required, a
            pointer does not lead to bytes inside it, or the fields overlap so that together they are longer than the
            message: a copy of them must not be larger than the message.
    """
    check_head(message, number_bytes)
    return decode_fields(message, field_count)


def decode_fields(message: memoryview, field_count: int) -> list[memoryview | None]:
    """Decode the fields of a message whose head was checked. Raises BatchMalformed."""
    total = len(message)
    number_words, pointer_count = _ROOT_SIZE.unpack_from(message, _ROOT_SIZE_AT)
    pointers_at = DATA_AT + number_words * WORD
    bytes_left = total - pointers_at - pointer_count * WORD
    if bytes_left < 0:
        raise BatchMalformed("the root struct is cut short")
    fields: list[memoryview | None] = [None] * field_count
    index = -1
    for pointer in _pointers(min(pointer_count, field_count)).unpack_from(message, pointers_at):
        index += 1
        if not pointer:
            continue
        if pointer & 3 != 1 or (pointer >> 32) & 7 != 2:
            raise BatchMalformed(f"field {index} is not a list of bytes")
        offset = (pointer & 0xFFFFFFFF) >> 2
        start = pointers_at + (index + 1 + offset) * WORD
        size = pointer >> 35
        end = start + size
        bytes_left -= size
        # A negative offset (bit 29 set) reaches far past any frame here, so this check refuses it as well.
        if end > total or bytes_left < 0:
            raise BatchMalformed(f"field {index} leads out of the message")
        fields[index] = message[start:end]
    return fields


@cache
def _pointers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")


def without_first(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """Views of `buffers` without their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []
