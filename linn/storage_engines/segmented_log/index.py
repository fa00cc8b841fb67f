"""The sparse index of a segment, in memory and as a file beside it, which also has a snapshot of the log's facts.

Laws: an index is never needed for correctness, only for speed: a missing or damaged one is rebuilt from the segment. A
whole index file proves that the part of the segment that it covers was on stable storage.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from crc32c import crc32c

from linn.api import Buffer, LogFacts

NO_TIME = -(1 << 63)
"""A value before all timestamps."""
_MAGIC = b"LINNIDX6"
_HEADER = struct.Struct("<8sqqqqqqqIIII")
HEADER_BYTES = _HEADER.size
_CRC_END = HEADER_BYTES - 4
_WIDTH = 8


class SparseIndex:
    """Entries in order: a batch's base offset, its position, and the greatest timestamp of all earlier batches."""

    __slots__ = ("offsets", "positions", "times_ms")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times_ms = array("q")

    def add(self, offset: int, position: int, greatest_before_ms: int) -> None:
        """Add the entry of a batch after all others."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.times_ms.append(greatest_before_ms)

    def entry_before(self, offset: int) -> tuple[int, int]:
        """(base offset, position) of the entry at or before the batch that holds `offset`; (-1, 0) if there is none."""
        place = bisect_right(self.offsets, offset) - 1
        return (self.offsets[place], self.positions[place]) if place >= 0 else (-1, 0)

    def position_before_time(self, timestamp_ms: int) -> int:
        """The position from which to search for the first batch with a timestamp of at least `timestamp_ms`."""
        place = bisect_left(self.times_ms, timestamp_ms) - 1
        return self.positions[place] if place >= 0 else 0

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts in an index file about the first `size_bytes` bytes of its segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    last_position: int
    """The position of the last batch."""
    max_timestamp_ms: int
    first_append_ms: int
    last_append_ms: int


@dataclass(frozen=True, slots=True)
class IndexImage:
    """An index file before it is written."""

    covered_bytes: int
    """Bytes of the segment that it covers."""
    data: bytes


def encode_index(summary: Summary, index: SparseIndex, facts: bytes) -> bytes:
    """Encode an index file: the header, three columns of little-endian Int64, and the log's facts at its end."""
    columns = b"".join(_little(column).tobytes() for column in (index.offsets, index.positions, index.times_ms))
    header = _HEADER.pack(
        _MAGIC,
        summary.base_offset,
        summary.end_offset,
        summary.size_bytes,
        summary.last_position,
        summary.max_timestamp_ms,
        summary.first_append_ms,
        summary.last_append_ms,
        len(index),
        len(facts),
        crc32c(facts, crc32c(columns)),
        0,
    )
    sealed = header[:_CRC_END]
    return sealed + struct.pack("<I", crc32c(sealed)) + columns + facts


def decode_summary(header: Buffer) -> Summary | None:
    """Decode the summary in the first HEADER_BYTES of an index file; None if it is damaged."""
    if len(header) < HEADER_BYTES:
        return None
    magic, *numbers, _, _, _, crc = _HEADER.unpack_from(header)
    if magic != _MAGIC or crc != crc32c(header[:_CRC_END]):
        return None
    return Summary(*numbers)


def decode_entries(data: Buffer) -> SparseIndex | None:
    """Decode the entries of an index file; None if it is damaged."""
    parts = _parts(data)
    if parts is None:
        return None
    columns, index = parts[0], SparseIndex()
    column_bytes = len(columns) // 3
    for place, column in enumerate((index.offsets, index.positions, index.times_ms)):
        column.frombytes(columns[place * column_bytes : (place + 1) * column_bytes])
        _little(column)
    return index


def decode_facts(data: Buffer) -> LogFacts | None:
    """Decode the facts of an index file; None if it is damaged."""
    parts = _parts(data)
    return LogFacts.decode(bytes(parts[1])) if parts is not None else None


def encoded_facts(data: Buffer) -> bytes:
    """The encoded facts of an index file; empty if it is damaged."""
    parts = _parts(data)
    return bytes(parts[1]) if parts is not None else b""


def _parts(data: Buffer) -> tuple[memoryview, memoryview] | None:
    """The columns and the facts of an index file; None if it is damaged."""
    if decode_summary(data) is None:
        return None
    count, facts_bytes, crc = _HEADER.unpack_from(data)[8:11]
    rest, columns_bytes = memoryview(data)[HEADER_BYTES:], 3 * _WIDTH * count
    if len(rest) != columns_bytes + facts_bytes or crc32c(rest) != crc:
        return None
    return rest[:columns_bytes], rest[columns_bytes:]


def _little(column: array[int]) -> array[int]:
    """Swap the bytes of a column if this machine's byte order differs from the file's."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
