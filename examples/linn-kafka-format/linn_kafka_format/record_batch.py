"""Kafka's record batch, version 2, as the body of a batch of linn.

A batch of a Kafka producer is stored as it came. Its records are decoded only where linn has to tell them apart. The
offsets, producer's numbers and epoch in its bytes count for nothing here: the batch around them has its own.
"""

from __future__ import annotations

import struct
import zlib

from crc32c import crc32c

from linn.api import BatchMalformed, BodyColumns, Headers, RecordBatch
from linn_kafka_format.varint import read_bytes, read_varint, write_bytes, write_varint

_HEAD = struct.Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
producerId, producerEpoch, baseSequence, number of records.
"""
_LENGTH_FROM = 12
"""Place from which `batchLength` counts."""
_CRC_FROM = 21
"""Place from which the CRC counts: that of the attributes."""
_MAGIC = 2
_NONE, _GZIP = 0, 1
_COMPRESSION, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
HEADERS_MAX = 16_384
"""Limit of the headers of a batch: they are decoded without a pause, in 0.1 s."""
_RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2
_NO_PRODUCER = (-1, -1, -1)


class KafkaRecordBatches:
    """The codec of the format; see `linn.api.BodyFormat`."""

    def check(self, body: memoryview, count: int, bytes_max: int) -> int:
        """Check head, CRC and size when decompressed. Records are looked at only if they may have many headers."""
        if len(body) < _HEAD.size:
            raise BatchMalformed(f"{len(body)} bytes are no record batch of Kafka's")
        _, length, _, magic, crc, attributes, last_delta, *_, held = _HEAD.unpack_from(body)
        if magic != _MAGIC:
            raise BatchMalformed(f"a record batch of Kafka's version {magic}, not {_MAGIC}")
        if length != len(body) - _LENGTH_FROM:
            raise BatchMalformed("the body is not one record batch of Kafka's, of the size that it says")
        if crc != crc32c(body[_CRC_FROM:]):
            raise BatchMalformed("the CRC of Kafka's record batch does not match")
        if held != count or last_delta < count - 1:
            raise BatchMalformed(f"Kafka's record batch holds {held} records, and the batch says {count}")
        if attributes & (_TRANSACTIONAL | _CONTROL):
            raise BatchMalformed("Kafka's transactions and control records are not served")
        compression = attributes & _COMPRESSION
        if compression not in (_NONE, _GZIP):
            raise BatchMalformed(f"Kafka's compression {compression} is not served: only none (0) and gzip (1) are")
        records = body[_HEAD.size :] if compression == _NONE else memoryview(_gunzipped(body[_HEAD.size :], bytes_max))
        if len(records) > count * _RECORD_BYTES_MIN + HEADERS_MAX * _HEADER_BYTES_MIN:
            _check_headers(bytes(records), count)
        return len(records)

    def to_native(self, body: memoryview, count: int, bytes_max: int) -> BodyColumns:
        """Decode the records. A null value becomes None, as linn's tombstones are."""
        attributes, base_ms, max_ms = _times(body)
        data = bytes(body[_HEAD.size :]) if not attributes & _COMPRESSION else _gunzipped(body[_HEAD.size :], bytes_max)
        keys, values, times, headers = _Columns(), _Columns(), list[int](), list[Headers]()
        at = 0
        try:
            for _ in range(count):
                size, at = read_varint(data, at)
                end = at + size
                delta, at = read_varint(data, at + 1)
                _, at = read_varint(data, at)
                key, at = read_bytes(data, at)
                value, at = read_bytes(data, at)
                found, at = _headers(data, at)
                if at != end:
                    raise BatchMalformed("a record of Kafka's is not of the size that it says")
                times.append(max_ms if attributes & _APPEND_TIME else base_ms + delta)
                keys.append(key)
                values.append(value)
                headers.append(found)
        except IndexError:
            raise BatchMalformed("the records of Kafka's record batch are cut short") from None
        if at != len(data):
            raise BatchMalformed(f"{len(data) - at} bytes follow the records of Kafka's record batch")
        return BodyColumns(
            values=values,
            keys=keys if any(key is not None for key in keys) else None,
            timestamps_ms=times,
            headers=headers if any(headers) else None,
        )

    def from_native(self, batch: RecordBatch) -> bytes:
        """Encode the records, not compressed, with their offsets in the log."""
        records, times = bytearray(), [batch.timestamp_ms(index) for index in range(batch.count)]
        for index, time_ms in enumerate(times):
            record = bytearray(1)
            write_varint(record, time_ms - times[0])
            write_varint(record, batch.offset(index) - batch.base_offset)
            write_bytes(record, batch.key(index))
            write_bytes(record, batch.value(index))
            headers = batch.headers(index)
            write_varint(record, len(headers))
            for name, value in headers:
                write_bytes(record, name.encode())
                write_bytes(record, value)
            write_varint(records, len(record))
            records += record
        numbers = (_NONE, batch.offset_span - 1, times[0], max(times), *_NO_PRODUCER, batch.count)
        length = _HEAD.size - _LENGTH_FROM + len(records)
        head = batch.base_offset, length, batch.leader_epoch, _MAGIC
        sealed = _HEAD.pack(*head, 0, *numbers)[_CRC_FROM:] + records
        return _HEAD.pack(*head, crc32c(sealed), *numbers)[:_CRC_FROM] + sealed


_Columns = list[bytes | None]


def _times(body: memoryview) -> tuple[int, int, int]:
    """(attributes, base timestamp, greatest timestamp)."""
    if len(body) < _HEAD.size:
        raise BatchMalformed(f"{len(body)} bytes are no record batch of Kafka's")
    numbers = _HEAD.unpack_from(body)
    return numbers[5], numbers[7], numbers[8]


def _check_headers(data: bytes, count: int) -> None:
    """Count the headers of all records. Raises BatchMalformed, also if there are more than HEADERS_MAX."""
    at = headers = 0
    try:
        for _ in range(count):
            size, at = read_varint(data, at)
            end = at + size
            _, at = read_varint(data, at + 1)
            _, at = read_varint(data, at)
            for _ in ("key", "value"):
                size, at = read_varint(data, at)
                at += max(size, 0)
            headers += max(read_varint(data, at)[0], 0)
            at = end
            if headers > HEADERS_MAX:
                raise BatchMalformed(f"the records of Kafka's record batch have more than {HEADERS_MAX} headers")
    except IndexError:
        raise BatchMalformed("the records of Kafka's record batch are cut short") from None


def _headers(data: bytes, at: int) -> tuple[Headers, int]:
    """(headers of a record, place behind them). Raises IndexError, BatchMalformed."""
    count, at = read_varint(data, at)
    if count <= 0:
        if count:
            raise BatchMalformed(f"a record of Kafka's with {count} headers")
        return (), at
    found = []
    for _ in range(count):
        name, at = read_bytes(data, at)
        value, at = read_bytes(data, at)
        try:
            found.append(((name or b"").decode(), value))
        except UnicodeDecodeError:
            raise BatchMalformed("the name of a header is not UTF-8") from None
    return tuple(found), at


def _gunzipped(data: memoryview, bytes_max: int) -> bytes:
    """The content of gzip data. Raises BatchMalformed, also if it is more than `bytes_max`."""
    member = zlib.decompressobj(wbits=31)
    try:
        content = member.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise BatchMalformed(f"the gzip data of Kafka's record batch is damaged: {error}") from None
    if len(content) > bytes_max:
        raise BatchMalformed(f"Kafka's record batch has more than {bytes_max} bytes when decompressed")
    if not member.eof or member.unused_data:
        raise BatchMalformed("the gzip data of Kafka's record batch is not one whole file")
    return content
