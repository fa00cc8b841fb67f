"""IdRows: ids of messages with the offsets of their records, in memory.

Laws: 24 bytes a record. Rows are in chunks by the last byte of the id, which ids that count up or are random fill
evenly, so that a search looks for 16 bytes in one chunk of 256.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from linn.core.batch.batch import ID_MASK, RecordBatch

ID_BYTES = 16
CHUNKS = 256
OFFSET = struct.Struct(">Q")
ROW_BYTES = ID_BYTES + OFFSET.size


class IdRows:
    """Ids and offsets. `count` is the number of rows."""

    __slots__ = ("chunks", "count")

    def __init__(self) -> None:
        self.chunks = [bytearray() for _ in range(CHUNKS)]
        self.count = 0

    def add(self, batch: RecordBatch) -> None:
        """Add the records of a stamped batch."""
        deltas, chunks, base, pack = batch.offset_deltas, self.chunks, batch.base_offset, OFFSET.pack
        for place, id in enumerate(each_id_of(batch)):
            chunk = chunks[id[-1]]
            chunk += id
            chunk += pack(base + (place if deltas is None else deltas[place]))
        self.count += batch.count

    def newest(self, id: bytes) -> int | None:
        """The offset that was added last with an id; None: there is none."""
        return newest_in(self.chunks[id[-1]], id)


def each_id_of(batch: RecordBatch) -> Sequence[bytes]:
    """The id of each record."""
    if batch.ids is not None:
        data = bytes(batch.ids)
        return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]
    return [(batch.base_id + index & ID_MASK).to_bytes(ID_BYTES) for index in range(batch.count)]


def offset_in(rows: bytes | bytearray, place: int) -> int:
    """The offset in one of some rows."""
    return int(OFFSET.unpack_from(rows, place * ROW_BYTES + ID_BYTES)[0])


def newest_in(rows: bytes | bytearray, id: bytes) -> int | None:
    """The offset in the last row of an id; None: there is none."""
    at = rows.rfind(id)
    while at >= 0 and at % ROW_BYTES:
        at = rows.rfind(id, 0, at + ID_BYTES - 1)
    return None if at < 0 else offset_in(rows, at // ROW_BYTES)
