"""The message ids of one partition's newest records, by which one that is published again is found.

Laws: an id is known from its append until its record is older than the window, or IDS_MAX offsets lie behind it. The
ids are a function of the log: they are rebuilt from its batches. A batch of several records without ids of their own,
whose ids count up from a random one, is known by its first id: its producer sends it again as a whole.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from linn.core.batch.batch import CONTROL, ID_MASK, TRANSACTIONAL, RecordBatch
from linn.core.queue.offset_map import OffsetMap

IDS_MAX = 1 << 20
"""Limit of the offsets whose ids are known: 24 MiB of entries, and about 10 MiB of buckets."""
MARKS_PER_WINDOW = 16
"""Former ends of the log that are remembered: a record is known up to 1/n longer than the window."""
_BUCKETS_MASK = (1 << 16) - 1
_ID_BYTES, _OFFSET_BYTES, _ENTRY_BYTES = 16, 8, 24


def ids_of(batch: RecordBatch) -> Sequence[bytes]:
    """The ids by which a batch is known: one for each record, or only one, of the first record."""
    ids = batch.ids
    if ids is None:
        return [(batch.base_id & ID_MASK).to_bytes(_ID_BYTES)]
    data = bytes(ids)
    return [data[at : at + _ID_BYTES] for at in range(0, len(data), _ID_BYTES)]


class Write(NamedTuple):
    """A batch of a transaction, with its numbers."""

    producer_id: int
    transaction: int
    base_offset: int
    attributes: int = int(TRANSACTIONAL)


class MessageIds:
    """The ids of one partition, with the offsets of their records. Its times are monotonic seconds."""

    def __init__(self, start: int) -> None:
        """Know no record before `start`."""
        self.writes: OffsetMap[Write] = OffsetMap()
        """Offsets of batches of transactions."""
        self._buckets: dict[int, bytearray] = {}
        self._before = start
        """Ids of records before this offset are forgotten."""
        self._end = 0
        self._last_s = -math.inf
        self._marks: deque[tuple[float, int]] = deque()
        """Former ends of the log with their times, oldest first."""

    def find(self, ids: Sequence[bytes]) -> list[int | None]:
        """The offsets of the records with these ids; None for one that is unknown."""
        get, found = self._buckets.get, list[int | None]()
        for id in ids:
            bucket = get(hash(id) & _BUCKETS_MASK)
            at = bucket.rfind(id) if bucket is not None else -1
            found.append(self._offset_at(bucket, id, at) if bucket is not None and at >= 0 else None)
        return found

    def _offset_at(self, bucket: bytearray, id: bytes, at: int) -> int | None:
        """The offset of an entry that seems to be at a place, or before it, where the place is within two entries."""
        while at >= 0 and at % _ENTRY_BYTES:
            at = bucket.rfind(id, 0, at + _ID_BYTES - 1)
        if at < 0:
            return None
        offset = int.from_bytes(bucket[at + _ID_BYTES : at + _ENTRY_BYTES])
        return None if offset < self._before else offset

    def note(self, batch: RecordBatch, now_s: float, window_s: float) -> None:
        """Record a stamped batch, appended at the end of the log at `now_s`."""
        self.forget(now_s, window_s)
        if not self._marks:
            self._before = batch.base_offset
        if not self._marks or now_s - self._marks[-1][0] >= window_s / MARKS_PER_WINDOW:
            self._marks.append((now_s, batch.base_offset))
        self._end, self._last_s = batch.end_offset, now_s
        if batch.attributes & CONTROL:
            return
        base = batch.base_offset
        if batch.attributes & TRANSACTIONAL:
            self.writes.set(base, batch.end_offset, Write(batch.producer_id, batch.transaction, base))
        deltas, buckets, before = batch.offset_deltas, self._buckets, self._before.to_bytes(_OFFSET_BYTES)
        for place, id in enumerate(ids_of(batch)):
            number = hash(id) & _BUCKETS_MASK
            bucket = buckets.get(number)
            if bucket is None:
                bucket = buckets[number] = bytearray()
            while bucket and bucket[_ID_BYTES:_ENTRY_BYTES] < before:
                del bucket[:_ENTRY_BYTES]
            bucket += id
            bucket += (base + (place if deltas is None else deltas[place])).to_bytes(_OFFSET_BYTES)

    def forget(self, now_s: float, window_s: float) -> None:
        """Forget ids that are older than the window, or beyond the limit."""
        marks, old_s = self._marks, now_s - window_s
        while len(marks) > 1 and marks[1][0] <= old_s:
            marks.popleft()
        before = max(self._end - IDS_MAX, marks[0][1] if marks else 0)
        if self._last_s <= old_s:
            before = self._end
            marks.clear()
        if before > self._before:
            self._before = before
            self.writes.take(0, before)

    @property
    def kept_from(self) -> int:
        """The offset from which on ids are known: records are kept from there on, so that a restart knows them."""
        return self._before
