"""Makes batches that a well-behaved producer never makes, with a CRC that fits."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from linn.core.batch import flat_message
from linn.core.batch.batch import BODY as BODY
from linn.core.batch.batch import IDS as IDS
from linn.core.batch.batch import KEY_HASHES as KEY_HASHES
from linn.core.batch.batch import NUMBER_BYTES, RecordBatch, seal
from linn.core.batch.batch import OFFSET_DELTAS as OFFSET_DELTAS
from linn.core.batch.batch import PRIORITIES as PRIORITIES
from linn.core.batch.batch import ROUTE_INDEX as ROUTE_INDEX
from linn.core.batch.batch import ROUTES as ROUTES
from linn.core.batch.flat_message import DATA_AT, Buffer

PLACES = {
    "count": ("<I", 52),
    "codec": ("<B", 88),
    "format": ("<B", 89),
    "pair_count": ("<H", 90),
    "body_bytes": ("<I", 92),
    "offset_span": ("<I", 120),
}
(
    VALUE_OFFSETS,
    VALUES,
    TIMESTAMPS,
    KEY_OFFSETS,
    KEYS,
    KEY_VALIDITY,
    VALUE_VALIDITY,
    HEADER_OFFSETS,
    HEADER_NAME_OFFSETS,
    HEADER_NAMES,
    HEADER_VALUE_OFFSETS,
    HEADER_VALUES,
    HEADER_VALIDITY,
) = range(13)


def forged(batch: RecordBatch, fields: Mapping[int, Buffer | None] | None = None, **numbers: int) -> RecordBatch:
    """`batch` with other fields and numbers, sealed."""
    changed = {**dict(enumerate(batch.raw_fields)), **(fields or {})}
    message = flat_message.encode(
        bytes(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES]), [changed[place] for place in sorted(changed)]
    )
    for name, number in numbers.items():
        kind, place = PLACES[name]
        struct.pack_into(kind, message, place, number)
    seal(message)
    return RecordBatch(message)


def with_body(batch: RecordBatch, columns: Mapping[int, Buffer | None]) -> RecordBatch:
    """An uncompressed `batch` with other columns in its body, sealed."""
    body = batch.raw_fields[BODY]
    assert body is not None
    changed = {**dict(enumerate(flat_message.decode(body, 0, 13))), **columns}
    encoded = flat_message.encode(b"", [changed[place] for place in sorted(changed)])
    return forged(batch, {BODY: encoded}, body_bytes=len(encoded))


def int32s(*numbers: int) -> bytes:
    """Numbers as a column of Int32."""
    return struct.pack(f"<{len(numbers)}i", *numbers)
