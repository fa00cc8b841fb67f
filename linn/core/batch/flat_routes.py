"""`Routes` messages in the layout that Cap'n Proto libraries write, read several times faster than through pycapnp.

Laws: the result is the same as pycapnp's; any other layout, or an invalid message, is left to pycapnp (the answer is
None). Each word is counted against the message's size when a pointer leads to it, so that time and memory are
proportional to the bytes, whatever the pointers claim.
"""

from __future__ import annotations

import struct

from linn.core.batch.record import LabelValue

FlatPair = tuple[str, tuple[tuple[str, LabelValue], ...]]

_ROOT = 1 << 48
"""Pointer to a struct of one pointer that directly follows."""
_LIST_KIND = 7 << 32 | 3
_STRUCTS = 7 << 32 | 1
_BYTES = 2 << 32 | 1
_OFFSET = 0xFFFFFFFC
_BEHIND_US = 1 << 31
_KIND_AND_SIGN = _LIST_KIND | _BEHIND_US
_PAIR_SIZE = 2 << 48
"""Size in the tag of a list of pairs: no numbers, two pointers."""
_LABEL_SIZE = 2 << 48 | 2 << 32
_LABEL_WORDS = 4
_TEXT, _INT, _FLOAT, _BOOL = range(4)
"""Members of a label's union, in the schema's order."""
_F64 = struct.Struct("<d")
_U64_SIGN, _U64 = 1 << 63, 1 << 64


class _OtherLayout(Exception):
    """A layout that only pycapnp reads."""


def read_routes(data: bytes, count: int, labels_max: int, text_bytes_max: int) -> list[FlatPair] | None:
    """The pairs of a message that claims to have `count`; None if pycapnp must read it."""
    if len(data) % 8 or len(data) < 24:
        return None
    words = struct.unpack(f"<{len(data) >> 3}Q", data)
    if words[0] != (len(words) - 1) << 32 or words[1] != _ROOT:
        return None
    try:
        return _Reader(data, words, text_bytes_max).pairs(count, labels_max)
    except (_OtherLayout, IndexError, UnicodeDecodeError):
        return None


class _Reader:
    """A reader of one message. `words[0]` is the segment table, so that word n of the segment is `words[n + 1]`."""

    def __init__(self, data: bytes, words: tuple[int, ...], text_bytes_max: int) -> None:
        self._data = data
        self._words = words
        self._left = len(words)
        """Words that pointers may still refer to."""
        self._text_bytes_max = text_bytes_max

    def pairs(self, count: int, labels_max: int) -> list[FlatPair]:
        """All pairs. Raises _OtherLayout, IndexError, UnicodeDecodeError."""
        words = self._words
        first = self._structs(2, _PAIR_SIZE, 2, count)
        found: list[FlatPair] = []
        for place in range(first, first + 2 * count, 2):
            key = self._text(place)
            pointer = words[place + 1]
            if not pointer:
                found.append((key, ()))
                continue
            number = words[place + 2 + ((pointer & _OFFSET) >> 2)] >> 2 & 0x3FFFFFFF
            if number > labels_max:
                raise _OtherLayout
            found.append((key, self._labels(place + 1, number)))
        return found

    def _structs(self, place: int, size: int, struct_words: int, count: int) -> int:
        """The place of the first of `count` structs of this size that the pointer at `place` leads to. Raises
        _OtherLayout.
        """
        pointer, total = self._words[place], count * struct_words
        if pointer & _LIST_KIND != _STRUCTS or pointer & _BEHIND_US or pointer >> 35 != total:
            raise _OtherLayout
        tag = place + 1 + ((pointer & _OFFSET) >> 2)
        self._left -= total + 1
        if self._left < 0 or tag + total >= len(self._words) or self._words[tag] != size | count << 2:
            raise _OtherLayout
        return tag + 1

    def _labels(self, place: int, count: int) -> tuple[tuple[str, LabelValue], ...]:
        first = self._structs(place, _LABEL_SIZE, _LABEL_WORDS, count)
        words, text = self._words, self._text
        labels: list[tuple[str, LabelValue]] = []
        before: str | None = None
        for at in range(first, first + _LABEL_WORDS * count, _LABEL_WORDS):
            name, kind = text(at + 2), words[at] & 0xFFFF
            if before is not None and name <= before:
                raise _OtherLayout
            before = name
            if kind == _TEXT:
                labels.append((name, text(at + 3)))
            elif kind == _INT:
                number = words[at + 1]
                labels.append((name, number - _U64 if number & _U64_SIGN else number))
            elif kind == _FLOAT:
                labels.append((name, _F64.unpack_from(self._data, 8 * at + 8)[0]))
            elif kind == _BOOL:
                labels.append((name, bool(words[at + 1] & 1)))
            else:
                raise _OtherLayout
        return tuple(labels)

    def _text(self, place: int) -> str:
        """The text that the pointer at `place` leads to; a null pointer is an empty one."""
        pointer = self._words[place]
        if not pointer:
            return ""
        size = pointer >> 35
        start = (place + 1 << 3) + ((pointer & _OFFSET) << 1)
        end = start + size
        self._left -= size + 7 >> 3
        data = self._data
        if (
            pointer & _KIND_AND_SIGN != _BYTES
            or self._left < 0
            or not 0 < size <= self._text_bytes_max + 1
            or end > len(data)
            or data[end - 1]
        ):
            raise _OtherLayout
        return data[start : end - 1].decode()
