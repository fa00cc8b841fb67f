"""Reading a settle of several entries without pycapnp, which takes 6 us for each.

Follows the pointers of a Cap'n Proto message (https://capnproto.org/encoding.html) to the list of entries, in any
segment, and unpacks the list at once. The tests compare it with pycapnp, which reads all other messages.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from linn.core.batch.flat_message import Buffer
from linn.wire.messages import SETTLE_ENTRIES_MAX, Settle, Settlement

MEMBER = 19
"""The index of `settle` among the members of `Frame`."""

_FRAME = struct.Struct("<QHH")
"""Correlation, batches, and the member."""
_U32 = struct.Struct("<I")
_POINTER = struct.Struct("<Q")
_ENTRY = "<iHHQqqI"
"""Partition, verdict, reason, delivery id, first, end and ms."""
_ENTRY_WORDS = 5
_WORD = 8


def read_settle(frame: Buffer) -> tuple[int, Settle] | None:
    """The correlation and the message of a settle; None if it is another message, or pycapnp has to read it."""
    try:
        segments = _segments(frame)
        _check_inside(segments[0] + _WORD, segments[1])
        data_at, pointers_at, _ = _struct(frame, segments, segments[0])
        correlation, batches, member = _FRAME.unpack_from(frame, data_at)
        if member != MEMBER or batches or pointers_at - data_at < _FRAME.size:
            return None
        data_at, pointers_at, pointers = _struct(frame, segments, pointers_at)
        if pointers_at - data_at < _U32.size:
            return None
        subscription: int = _U32.unpack_from(frame, data_at)[0]
        entries = _entries(frame, segments, pointers_at)
        reasons = _texts(frame, segments, pointers_at + _WORD) if pointers > 1 else []
        return correlation, Settle(subscription, entries, reasons)
    except (IndexError, ValueError, struct.error):
        return None


def _segments(frame: Buffer) -> list[int]:
    """The bounds of the segments. Raises ValueError if they do not fill the frame."""
    count = _U32.unpack_from(frame)[0] + 1
    bounds = [_WORD * (count // 2 + 1)]
    for words in struct.unpack_from(f"<{count}I", frame, 4):
        bounds.append(bounds[-1] + _WORD * words)
    if bounds[-1] != len(frame):
        raise ValueError("the segments are not the whole frame")
    return bounds


def _followed(frame: Buffer, segments: list[int], at: int) -> tuple[int, int, int]:
    """The pointer at `at`, or the one in another segment to which it leads; the place to which that pointer leads, and
    the end of its segment, in which all that it leads to has to lie.

    Raises ValueError if the place is before the pointer, or the other pointer is not in its segment.
    """
    pointer: int = _POINTER.unpack_from(frame, at)[0]
    end = segments[bisect_right(segments, at)]
    if pointer & 7 == 2:
        segment = pointer >> 32
        at, end = segments[segment] + _WORD * ((pointer & 0xFFFFFFFF) >> 3), segments[segment + 1]
        _check_inside(at + _WORD, end)
        pointer = _POINTER.unpack_from(frame, at)[0]
    offset = (pointer & 0xFFFFFFFF) >> 2
    if offset >= 1 << 29:
        raise ValueError("a pointer leads back")
    return pointer, at + _WORD * (1 + offset), end


def _check_inside(place: int, end: int) -> None:
    """Check that a place is not beyond the end of its segment. Raises ValueError."""
    if place > end:
        raise ValueError("a pointer leads out of its segment")


def _struct(frame: Buffer, segments: list[int], at: int) -> tuple[int, int, int]:
    """The places of a struct's data and of its pointers, and their number. Raises ValueError if it has none."""
    pointer, data_at, segment_end = _followed(frame, segments, at)
    pointers = pointer >> 48
    if pointer & 3 or not pointers:
        raise ValueError("not a struct with pointers")
    pointers_at = data_at + _WORD * (pointer >> 32 & 0xFFFF)
    _check_inside(pointers_at + _WORD * pointers, segment_end)
    return data_at, pointers_at, pointers


def _entries(frame: Buffer, segments: list[int], at: int) -> list[Settlement]:
    """The list of entries at the pointer `at`. Raises ValueError if there are too many, or they are not entries."""
    pointer, at, segment_end = _followed(frame, segments, at)
    if pointer & 3 != 1 or pointer >> 32 & 7 != 7:
        raise ValueError("not a list of structs")
    _check_inside(at + _WORD, segment_end)
    tag: int = _POINTER.unpack_from(frame, at)[0]
    count, data_words = (tag & 0xFFFFFFFF) >> 2, tag >> 32 & 0xFFFF
    words = data_words + (tag >> 48)
    if tag & 3 or data_words < _ENTRY_WORDS or count > SETTLE_ENTRIES_MAX or count * words != pointer >> 35:
        raise ValueError("not the entries of a settle")
    layout = struct.Struct(f"{_ENTRY}{_WORD * words - struct.calcsize(_ENTRY)}x")
    begin, end = at + _WORD, at + _WORD + layout.size * count
    _check_inside(end, segment_end)
    rows = layout.iter_unpack(frame[begin:end])
    return [
        Settlement(partition, id, first, end, verdict, ms, reason)
        for partition, verdict, reason, id, first, end, ms in rows
    ]


def _texts(frame: Buffer, segments: list[int], at: int) -> list[str]:
    """The list of texts at the pointer `at`; empty if it is null.

    Raises ValueError if there are too many, they are not text, or they are larger than the frame because they overlap.
    """
    if not _POINTER.unpack_from(frame, at)[0]:
        return []
    pointer, at, segment_end = _followed(frame, segments, at)
    count = pointer >> 35
    if pointer & 3 != 1 or pointer >> 32 & 7 != 6 or count > SETTLE_ENTRIES_MAX:
        raise ValueError("not a list of texts")
    _check_inside(at + _WORD * count, segment_end)
    texts: list[str] = []
    left = len(frame)
    for place in range(at, at + _WORD * count, _WORD):
        pointer, begin, segment_end = _followed(frame, segments, place)
        size = pointer >> 35
        left -= size
        if pointer & 3 != 1 or pointer >> 32 & 7 != 2 or not size or left < 0:
            raise ValueError("not a text")
        _check_inside(begin + size, segment_end)
        text = bytes(frame[begin : begin + size])
        if text[-1]:
            raise ValueError("a text without its end")
        texts.append(text[:-1].decode())
    return texts
