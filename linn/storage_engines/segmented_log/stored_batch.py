"""The head of a stored batch, which can be read without the rest of the batch. The CRC of the stamp seals its stamp.

The positions of the numbers come from schema/batch.capnp.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from linn.api import BATCH_BYTES_MIN, DATA_AT, NUMBER_BYTES, WORD, BatchCorrupt, BatchError, BatchMalformed, RecordBatch

_HEAD = struct.Struct("<II8xqqqiIIIqqq6xHxB30xI4x")
HEAD_BYTES = _HEAD.size
_STAMP_END = 44
_ROOT = struct.pack("<IH", 0, NUMBER_BYTES // WORD)
"""The root pointer of every batch written by this version, without the number of its fields."""
_ROOT_AT = 8


class Head(NamedTuple):
    """The numbers at the front of a stored batch. Only the numbers of the stamp are checked against a CRC."""

    size: int
    base_offset: int
    append_time_ms: int
    durable_offset: int
    record_count: int
    max_timestamp_ms: int
    producer_id: int
    attributes: int
    format: int
    offset_span: int

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.base_offset + self.offset_span


def batch_bytes(view: memoryview, at: int) -> int:
    """The size that the batch at `at` claims.

    Raises BatchMalformed if there is no batch. `view` holds at least 8 bytes there.
    """
    segments, words = struct.unpack_from("<II", view, at)
    size = WORD + int(words) * WORD
    if segments or size < BATCH_BYTES_MIN:
        raise BatchMalformed("no record batch begins here")
    return size


def head_at(view: memoryview, at: int) -> Head:
    """Read the head of the batch at `at`; `view` holds at least HEAD_BYTES there.

    Raises BatchMalformed, BatchCorrupt.
    """
    size = batch_bytes(view, at)
    _, _, base, append_ms, durable, _, stamp_crc, _, *sealed = _HEAD.unpack_from(view, at)
    count, _, max_ms, *rest = sealed
    if crc32c(view[at + DATA_AT : at + _STAMP_END]) != stamp_crc:
        raise BatchCorrupt("the CRC of a batch's stamp does not match")
    return Head(size, base, append_ms, durable, count, max_ms, *rest)


def stamps_in(data: bytearray) -> Iterator[tuple[int, Head]]:
    """The heads with a correct CRC in `data`, and their places. Their batches may be torn.

    Searches only word-aligned places, where batches begin.
    """
    view = memoryview(data)
    found = data.find(_ROOT)
    while found >= 0:
        at = found - _ROOT_AT
        if at >= 0 and at % WORD == 0 and at + HEAD_BYTES <= len(view):
            head = _stamp_at(view, at)
            if head is not None:
                yield at, head
        found = data.find(_ROOT, found + 1)


def is_whole(data: bytearray, head: Head) -> bool:
    """Whether `data` holds the whole, undamaged batch with this head."""
    if len(data) != head.size:
        return False
    try:
        RecordBatch(data).check_stored()
    except BatchError:
        return False
    return True


def _stamp_at(view: memoryview, at: int) -> Head | None:
    try:
        return head_at(view, at)
    except (BatchMalformed, BatchCorrupt):
        return None


def whole_batches(view: memoryview, bytes_max: int, batches_max: int) -> list[RecordBatch]:
    """Read the whole batches in `view` that fit, up to a damaged one. Raises BatchError if the first one is damaged."""
    batches: list[RecordBatch] = []
    at, end = 0, min(len(view), bytes_max)
    try:
        while len(batches) < batches_max and at + HEAD_BYTES <= end and at + (size := batch_bytes(view, at)) <= end:
            batch = RecordBatch(view[at : at + size])
            batch.check_stored()
            if batches and batch.base_offset != batches[-1].end_offset:
                raise BatchMalformed(f"offset {batch.base_offset} follows offset {batches[-1].end_offset - 1}")
            batches.append(batch)
            at += size
    except BatchError:
        if not batches:
            raise
    return batches
