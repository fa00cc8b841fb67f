"""A record batch from a client: as the broker takes it in, cuts and stores it, and as a client reads it.

Input: a byte of options, a byte with which numbers are chosen, and bytes that the options make a batch of.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import zstandard
from fuzz_budget import outcome, within_budget

from linn.client.consume.received import ReceivedBatch, ReceivedMessage
from linn.core.batch import flat_message
from linn.core.batch.batch import BODY as BODY_AT
from linn.core.batch.batch import (
    FIELD_COUNT,
    NUMBER_BYTES,
    ROUTE_INDEX,
    SEALED,
    BatchLimits,
    Codec,
    RecordBatch,
    seal,
)
from linn.core.batch.batch import ROUTES as ROUTES_AT
from linn.core.batch.builder import build_from_records, slice_batch, take_batch
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Record
from linn.core.batch.routes import decode_any_routes, decode_routes
from linn.core.errors.tree import LinnError

AS_IT_IS, SEALED_BATCH, BODY, COMPRESSED_BODY, ROUTES = range(5)
"""Options, modulo their number: bytes of a message; the same with its size and CRC put right; the body of a batch that
is sound otherwise, as it is or compressed; the routes of such a batch."""
LIMITS = BatchLimits(batch_bytes_max=1 << 18, records_max=1 << 14)
RECORDS_READ = 32
"""The number of records read at either end of a batch."""
_SEALED_AT = DATA_AT + NUMBER_BYTES - SEALED.size


def fuzz_one(data: bytes) -> None:
    """A batch that is taken in can be cut and read, or that is refused; what is read is the same in every way."""
    if len(data) < 2:
        return
    message = message_of(data[0] % 5, data[1], data[2:])
    batch = outcome(lambda: RecordBatch(message))
    if isinstance(batch, str):
        return
    opened = min(batch.body_bytes, LIMITS.batch_bytes_max)
    with within_budget(len(message) + opened):
        check_routes(batch)
        outcome(lambda: ReceivedBatch("t", 0, batch).values)
        outcome(lambda: batch.verify(BatchLimits()))
        if outcome(lambda: batch.verify(LIMITS)) is not None:
            return
        batch.stamp(1 << 40, 5, 7)
        RecordBatch(bytes(batch.message)).check_stored()
        readable = not isinstance(outcome(batch.body), str) and not isinstance(outcome(batch.pairs), str)
        check_parts(batch, data[1], readable)
        if readable:
            check_rebuilt(batch)


def message_of(option: int, number: int, content: bytes) -> bytearray:
    """The bytes that come in."""
    if option == AS_IT_IS:
        return bytearray(content)
    if option == SEALED_BATCH:
        message = bytearray(content[: len(content) // 8 * 8])
        if len(message) >= 56:
            struct.pack_into("<II", message, 0, 0, len(message) // 8 - 1)
            seal(message)
        return message
    fields: list[bytes | None] = [None] * FIELD_COUNT
    codec, body_bytes, pair_count, count = Codec.NONE, len(content), 0, 1 + number % 16
    fields[BODY_AT] = content
    if option == COMPRESSED_BODY:
        codec, fields[BODY_AT] = Codec.ZSTD, zstandard.ZstdCompressor().compress(content)
    elif option == ROUTES:
        sound = build_from_records([Record(value=b"v")] * count, base_id=9)
        fields = [None if field is None else bytes(field) for field in sound.raw_fields]
        fields[ROUTES_AT], pair_count, body_bytes = content, count, sound.body_bytes
        fields[ROUTE_INDEX] = struct.pack(f"<{count}H", *range(count)) if count > 1 else None
    sealed = SEALED.pack(count, 3, 4, 0, 0, 0, 0, codec, 0, pair_count, body_bytes, 1, 2, 0, count)
    message = flat_message.encode(bytes(_SEALED_AT - DATA_AT) + sealed, fields)
    seal(message)
    return message


def check_routes(batch: RecordBatch) -> None:
    """The quick reader of routes says what pycapnp says."""
    routes = outcome(lambda: batch.routes)
    if isinstance(routes, memoryview):
        data, count = bytes(routes), batch.pair_count
        quick = outcome(lambda: repr(decode_routes(data, count)))
        assert quick == outcome(lambda: repr(decode_any_routes(data, count)))


def record_of(batch: RecordBatch, index: int) -> str:
    """A record as text that tells True from 1 and finds NaN the same as NaN; or the code of an error."""

    def read() -> str:
        record = batch.record(index)
        return repr(replace(record, labels=dict(sorted(record.labels.items()))))

    return outcome(read)


def check_parts(batch: RecordBatch, number: int, readable: bool) -> None:
    """A part holds what the whole holds there, and is as sound; of what can't be read there are no parts."""
    count = batch.count
    first = number % count
    last = first + 1 + number * 7 % (count - first)
    for indexes in ([*range(first, last)], [*range(first, count, 2)]):
        dense = len(indexes) == indexes[-1] - indexes[0] + 1
        try:
            base = batch.base_offset
            part = slice_batch(batch, base + first, base + indexes[-1] + 1) if dense else take_batch(batch, indexes)
        except LinnError:
            assert not readable or batch.format
            continue
        part.check_crc()
        part.verify(BatchLimits())
        for place, index in enumerate(indexes[:RECORDS_READ]):
            # A part may be readable where the whole isn't, for what is wrong with it may lie elsewhere.
            assert not readable or record_of(part, place) == record_of(batch, index)
    unstamped = take_batch(batch, range(count))
    assert (unstamped.base_offset, unstamped.count) == (0, count)


def check_rebuilt(batch: RecordBatch) -> None:
    """A client reads the same by message as by record, and what it makes of what it read is the same again."""
    received = ReceivedBatch("t", 0, batch)
    values = received.values
    ends = {*range(min(RECORDS_READ, batch.count)), *range(max(0, batch.count - RECORDS_READ), batch.count)}
    for index in sorted(ends):
        record = outcome(lambda index=index: batch.record(index))  # type: ignore[misc]
        if isinstance(record, str):
            continue
        message = ReceivedMessage(received, index)
        assert message.value == values[index] == record.value
        assert (message.key, message.headers, message.id) == (record.key, record.headers, record.id)
        rebuilt = build_from_records([record], base_id=0, codec=Codec(index % 2))
        rebuilt.verify(BatchLimits())
        assert record_of(rebuilt, 0) == record_of(batch, index)
