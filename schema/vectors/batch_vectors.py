"""Record batches: whole ones of every shape, and damaged ones, each with the one thing that is wrong with it."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from vector import Vector

from linn.core.batch import flat_message, schema, zstd_codec
from linn.core.batch.batch import (
    BODY,
    NUMBER_BYTES,
    OFFSET_DELTAS,
    PRIORITIES,
    ROUTE_INDEX,
    ROUTES,
    RecordBatch,
    seal,
)
from linn.core.batch.builder import (
    BatchColumns,
    build_batch,
    build_from_records,
    pick_batch,
    slice_batch,
    take_batch,
)
from linn.core.batch.flat_message import DATA_AT, Buffer
from linn.core.batch.key_hash import key_hash
from linn.core.batch.record import Record

BASE_ID = 0x018BCFE5_6800_7ABC_8DEF_000000000000
TIME_MS = 1_700_000_000_000
PLAIN = [Record(value=b"hello", timestamp_ms=TIME_MS)]
PAGE = [
    Record(
        value=b"hello", key=b"k", routing_key="a.b", labels={"late": True}, headers=(("h", b"1"),), timestamp_ms=TIME_MS
    ),
    Record(value=None, key=b"k", routing_key="a.b", labels={"late": True}, timestamp_ms=TIME_MS + 1),
]
"""The example of docs/reference/batch-format.md."""
KEYED = [Record(value=b"v%d" % n, key=key, timestamp_ms=TIME_MS) for n, key in enumerate([b"a", None, b"", b"\0\xff"])]
VALUES = [Record(value=value, timestamp_ms=TIME_MS) for value in (b"", None, b"x" * 1_000, None, "wörter".encode())]
LABELS = [
    Record(value=b"1", routing_key="flights.JFK.late", labels={"delay": 33, "carrier": "UA"}, timestamp_ms=TIME_MS),
    Record(value=b"2", timestamp_ms=TIME_MS),
    Record(value=b"3", routing_key="flights.JFK.late", labels={"carrier": "UA", "delay": 33}, timestamp_ms=TIME_MS),
    Record(value=b"4", labels={"x": True}, timestamp_ms=TIME_MS),
    Record(value=b"5", labels={"x": 1}, timestamp_ms=TIME_MS),
    Record(value=b"6", labels={"x": 1.0}, timestamp_ms=TIME_MS),
    Record(value=b"7", labels={"x": "1"}, timestamp_ms=TIME_MS),
    Record(value=b"8", labels={"z": -0.0, "ä": 2**63 - 1, "Z": -(2**63), "": False, "e": ""}, timestamp_ms=TIME_MS),
    Record(value=b"9", routing_key="départ.\0.✈", labels={"\U00010000": 0.1, "\uffff": 5e-324}, timestamp_ms=TIME_MS),
]
HEADERS = [
    Record(value=b"1", headers=(("trace", b"\0\1\2"), ("trace", b"again"), ("", b"")), timestamp_ms=TIME_MS),
    Record(value=b"2", timestamp_ms=TIME_MS),
    Record(value=b"3", headers=(("null", None), ("ключ", b"v")), timestamp_ms=TIME_MS),
]
IDS = [
    Record(value=b"1", id=UUID(int=7), timestamp_ms=TIME_MS),
    Record(value=b"2", id=UUID(int=(1 << 128) - 1), timestamp_ms=TIME_MS),
    Record(value=b"3", id=UUID(int=BASE_ID), timestamp_ms=TIME_MS),
]
TIMES = [Record(value=b"%d" % n, timestamp_ms=time) for n, time in enumerate([TIME_MS, -1, 2**63 - 1, 0, -(2**63)])]
RULES = [
    Record(value=b"1", priority=255, delay_ms=2**32 - 1, ttl_ms=1, timestamp_ms=TIME_MS),
    Record(value=b"2", timestamp_ms=TIME_MS),
]
MANY = [
    Record(value=None if n % 7 == 0 else b"%d" % n, key=b"k%d" % (n % 5) if n % 3 else None, timestamp_ms=TIME_MS + n)
    for n in range(100)
]
COMPRESSED = bytes.fromhex("28b52ffd601003150100a80000000081000200050000004200001fe8030000780400e47155750eb6322401e0")


# --- what a batch says -----------------------------------------------------------------------------------------------


def text(content: bytes | None) -> str | None:
    """Bytes in the manifest."""
    return base64.b64encode(content).decode() if content is not None else None


def record_says(record: Record) -> dict[str, Any]:
    """A record in the manifest. Headers are pairs, because names may repeat."""
    return {
        "value": text(record.value),
        "key": text(record.key),
        "routing_key": record.routing_key,
        "labels": dict(record.labels),
        "headers": [[name, text(value)] for name, value in record.headers],
        "timestamp_ms": record.timestamp_ms,
        "id": str(record.id),
        "priority": record.priority,
        "delay_ms": record.delay_ms,
        "ttl_ms": record.ttl_ms,
    }


HEADER = {
    "baseOffset": "base_offset",
    "appendTimeMs": "append_time_ms",
    "durableOffset": "durable_offset",
    "leaderEpoch": "leader_epoch",
    "stampCrc": "stamp_crc",
    "crc": "crc",
    "count": "count",
    "firstTimestampMs": "first_timestamp_ms",
    "maxTimestampMs": "max_timestamp_ms",
    "producerId": "producer_id",
    "firstSequence": "first_sequence",
    "producerEpoch": "producer_epoch",
    "attributes": "attributes",
    "codec": "codec",
    "format": "format",
    "pairCount": "pair_count",
    "bodyBytes": "body_bytes",
    "transaction": "transaction",
    "offsetSpan": "offset_span",
}
"""Numbers by their name in the schema, but for the two halves of the id."""


def header_says(batch: RecordBatch) -> dict[str, int]:
    """A batch's numbers in the manifest."""
    numbers = {name: int(getattr(batch, place)) for name, place in HEADER.items()}
    return {**numbers, "idHigh": batch.base_id >> 64, "idLow": batch.base_id & (1 << 64) - 1}


def whole(name: str, what: str, batch: RecordBatch, *, canonical: bool = False) -> Vector:
    """A batch that can be read. `canonical`: what an encoder writes that is given these records."""
    records = [record_says(record) | {"offset": batch.offset(at)} for at, record in enumerate(batch.records())]
    says = {"header": header_says(batch), "records": records}
    return Vector(name, what, bytes(batch.message), {"canonical": canonical, **says})


def damaged(name: str, what: str, batch: RecordBatch | bytes, error: str) -> Vector:
    """A batch that must be refused with this code."""
    content = batch if isinstance(batch, bytes) else bytes(batch.message)
    return Vector(f"damaged-{name}", what, content, {"error": error})


# --- forging ---------------------------------------------------------------------------------------------------------

VALUE_OFFSETS, TIMESTAMPS, KEYS, VALUE_VALIDITY, HEADER_OFFSETS, HEADER_NAME_OFFSETS, HEADER_NAMES = (
    0,
    2,
    4,
    6,
    7,
    8,
    9,
)
PLACES = {"count": ("<I", 52), "codec": ("<B", 88), "format": ("<B", 89), "pair_count": ("<H", 90)} | {
    "body_bytes": ("<I", 92),
    "offset_span": ("<I", 120),
}
POINTERS_AT = DATA_AT + NUMBER_BYTES


def built(records: Sequence[Record]) -> RecordBatch:
    """An uncompressed batch."""
    return build_from_records(records, base_id=BASE_ID)


def forged(batch: RecordBatch, fields: Mapping[int, Buffer | None] | None = None, **numbers: int) -> RecordBatch:
    """`batch` with other fields and numbers, and a seal that fits them."""
    changed = [*batch.raw_fields]
    for place, field in (fields or {}).items():
        changed[place : place + 1] = [None if field is None else memoryview(field)]
    message = flat_message.encode(bytes(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES]), changed)
    for name, number in numbers.items():
        kind, place = PLACES[name]
        struct.pack_into(kind, message, place, number)
    seal(message)
    return RecordBatch(message)


def with_gaps(batch: RecordBatch, deltas: Sequence[int], span: int) -> RecordBatch:
    """`batch` with these offsets, and a span."""
    return forged(batch, {OFFSET_DELTAS: struct.pack(f"<{len(deltas)}I", *deltas)}, offset_span=span)


def with_columns(batch: RecordBatch, columns: Mapping[int, Buffer | None]) -> RecordBatch:
    """`batch` with other columns in its body."""
    body = batch.raw_fields[BODY]
    assert body is not None
    changed: list[Buffer | None] = [*flat_message.decode(body, 0, 13)]
    for place, column in columns.items():
        changed[place] = column
    encoded = flat_message.encode(b"", changed)
    return forged(batch, {BODY: encoded}, body_bytes=len(encoded))


def with_byte(batch: RecordBatch, place: int, byte: int, *, sealed: bool = True) -> bytes:
    """The bytes of `batch` with another byte at `place`."""
    message = bytearray(batch.message)
    assert message[place] != byte
    message[place] = byte
    if sealed:
        seal(message)
    return bytes(message)


def with_routes(routes: bytes) -> RecordBatch:
    """A batch of one record with these bytes in `routes`."""
    return forged(built([PAGE[0]]), {ROUTES: routes})


def routes_with(old: bytes, new: bytes) -> RecordBatch:
    """A batch of one record whose routes have `new` in the place of `old`."""
    routes = bytes(built([replace(PAGE[0], labels={"late": True, "more": "x"})]).raw_fields[ROUTES] or b"")
    assert routes.count(old) == 1
    assert len(old) == len(new)
    return with_routes(routes.replace(old, new))


def int32s(*numbers: int) -> bytes:
    """A column of Int32."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def routes_of(pairs: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> bytes:
    """A Routes message without any of the checks that the encoder has."""
    message = schema.load("batch").Routes.new_message(num_first_segment_words=4_096)
    for target, (routing_key, labels) in zip(message.init("pairs", len(pairs)), pairs, strict=True):
        target.routingKey = routing_key
        for label, (name, value) in zip(target.init("labels", len(labels)), labels, strict=True):
            label.name, label.value.int = name, value
    return bytes(message.to_bytes())


# --- zstd ------------------------------------------------------------------------------------------------------------


def zstd_frame(content: bytes, *, says: int | None = -1, window_log: int | None = None) -> bytes:
    """One frame of one block that is not compressed, which is the same whatever library reads it.

    `says` is the content size in its header, None for none; with `window_log` there is a window of 2^window_log bytes.
    """
    size = len(content) if says == -1 else says
    single = window_log is None
    header = bytes([(0b10 << 6 if size is not None else 0) | single << 5])
    header += b"" if window_log is None else bytes([window_log - 10 << 3])
    header += b"" if size is None else struct.pack("<I", size)
    return b"\x28\xb5\x2f\xfd" + header + struct.pack("<I", len(content) << 3 | 1)[:3] + content


def compressed(batch: RecordBatch, frame: bytes, body_bytes: int | None = None) -> RecordBatch:
    """`batch` with this frame for its body."""
    size = batch.body_bytes if body_bytes is None else body_bytes
    return forged(batch, {BODY: frame}, codec=1, body_bytes=size)


def body_of(batch: RecordBatch) -> bytes:
    """The uncompressed body."""
    return bytes(batch.raw_fields[BODY] or b"")


# --- the vectors -----------------------------------------------------------------------------------------------------


def batch_vectors() -> Iterator[Vector]:
    """All of them, whole ones first."""
    yield from _whole_vectors()
    yield from _damaged_messages()
    yield from _damaged_columns()
    yield from _damaged_offsets()
    yield from _damaged_routes()
    yield from _damaged_bodies()
    yield from _damaged_zstd()


def _whole_vectors() -> Iterator[Vector]:
    for name, what, records in (
        ("plain", "one value and nothing else; the publish of docs/reference/protocol.md", PLAIN),
        ("page", "the worked example of docs/reference/batch-format.md, as a producer seals it", PAGE),
        ("keys", "keys: present, null, empty, not text", KEYED),
        ("values", "values: empty, null (tombstones), long, UTF-8", VALUES),
        (
            "labels",
            "eight (routing key, labels) pairs with an index: all types, look-alikes, order by code point",
            LABELS,
        ),
        ("headers", "headers: a name twice, empty, null value, not ASCII", HEADERS),
        ("ids", "an id of its own for each record", IDS),
        ("times", "a timestamp for each record, before 1970 too", TIMES),
        ("rules", "priorities, delays and times to live", RULES),
        ("many", "100 records: bitmaps and offsets of many words", MANY),
        ("tombstone", "nothing but one null value", [Record(value=None, timestamp_ms=0)]),
    ):
        yield whole(name, what, built(records), canonical=True)
    columns = BatchColumns([r.value for r in KEYED], TIME_MS, BASE_ID, keys=[r.key for r in KEYED])
    columns.key_hashes = [key_hash(record.key) for record in KEYED]
    yield whole("key-hashes", "the batch `keys` with the hashes of its keys", build_batch(columns))
    wrapped = build_from_records(VALUES, base_id=(1 << 128) - 2)
    yield whole("id-wraps", "ids that count over 2^128 - 1 to 0", wrapped, canonical=True)
    yield from _cut_and_stamped()
    yield from _zstd_vectors()
    yield whole("newer", "a newer writer's: two numbers and a field more than this version has", _newer(built(PAGE)))


def _cut_and_stamped() -> Iterator[Vector]:
    stamped = built(MANY)
    stamped.stamp(41, TIME_MS + 500, 40, 3)
    part = slice_batch(stamped, 44, 53)
    taken = take_batch(stamped, [0, 1, 7, 50])
    page = built(PAGE)
    page.stamp(41, TIME_MS + 500, 40, 3)
    yield whole("stamped", "the batch `page`, stamped at offset 41", page)
    far = built(PLAIN)
    far.stamp(2**62, 2**62, 2**62 - 1, 2**31 - 1)
    yield whole("stamped-far", "the batch `plain`, at offset 2^62", far)
    yield whole("sliced", "records 3 to 11 of the batch `many`, cut by a broker and stamped at offset 44", part)
    yield whole("taken", "four records of the batch `many`, taken by an exchange: ids of their own", taken)
    gaps = pick_batch(stamped, [3, 17, 40], range(41, 141))
    yield whole("gaps", "records 3, 17 and 40 of the batch `many`, with its 100 offsets from 41 on", gaps)
    cut = slice_batch(gaps, 58, 90)
    yield whole("gaps-cut", "the batch `gaps` from offset 58 to 90: a gap between its records, and one behind", cut)
    dense = slice_batch(gaps, 58, 59)
    yield whole("gaps-none", "the batch `gaps` from offset 58 to 59: one record, and no gap", dense)


def _zstd_vectors() -> Iterator[Vector]:
    batch = built(VALUES[2:3])
    assert zstd_codec.decompress(COMPRESSED, batch.body_bytes) == body_of(batch)
    yield whole("zstd", "the third of `values` alone, its body compressed by zstd", compressed(batch, COMPRESSED))
    page = built(PAGE)
    stored = compressed(page, zstd_frame(body_of(page)))
    yield whole("zstd-stored", "the batch `page`, its body a zstd frame of one block that is not compressed", stored)
    window = compressed(page, zstd_frame(body_of(page), window_log=23))
    yield whole("zstd-window", "as `zstd-stored`, and the frame asks for a window of 8 MiB, the most", window)


def _newer(batch: RecordBatch) -> RecordBatch:
    numbers = bytes(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES]) + struct.pack("<QQ", 1, 2)
    message = flat_message.encode(numbers, [*batch.raw_fields, b"of a later version"])
    seal(message)
    return RecordBatch(message)


def _damaged_messages() -> Iterator[Vector]:
    plain, malformed = built(PLAIN), "batch.malformed"
    message = bytes(plain.message)
    yield damaged("empty", "no bytes at all", b"", malformed)
    yield damaged("head-only", "the segment table alone", message[:8], malformed)
    yield damaged("cut", "the last word is missing", message[:-8], malformed)
    yield damaged("longer", "a word behind the segment", message + bytes(8), malformed)
    yield damaged("segments", "two segments", with_byte(plain, 0, 1), malformed)
    yield damaged("root", "the root struct is not first in its segment", with_byte(plain, 8, 4), malformed)
    yield damaged("numbers", "the root struct has 13 words of numbers", with_byte(plain, 12, 13), malformed)
    yield damaged("root-long", "the root struct is longer than the message", with_byte(plain, 14, 255), malformed)
    body_at = POINTERS_AT + 8 * BODY
    yield damaged("field-kind", "the body is a struct", with_byte(plain, body_at, 0), malformed)
    yield damaged("field-items", "the body is a list of UInt16", with_byte(plain, body_at + 4, 0x43), malformed)
    yield damaged("field-out", "the body ends behind the message", with_byte(plain, body_at + 5, 5), malformed)
    yield damaged("field-back", "the body lies before its pointer", with_byte(plain, body_at + 3, 0x80), malformed)
    yield damaged("fields-overlap", "two fields share their bytes", _overlapping(built(KEYED)), malformed)
    yield damaged(
        "body-byte",
        "a bit of the value is another",
        with_byte(plain, len(message) - 8, 0, sealed=False),
        "batch.corrupt",
    )
    yield damaged("count-byte", "the count is not as sealed", with_byte(plain, 52, 2, sealed=False), "batch.corrupt")
    yield damaged("seal", "the seal itself is damaged", with_byte(plain, 48, 0, sealed=False), "batch.corrupt")
    stamped = built(PLAIN)
    stamped.stamp(41, TIME_MS, 40, 3)
    yield damaged("offset-byte", "the offset is not as stamped", with_byte(stamped, 16, 42), "batch.corrupt")
    yield damaged("stamp", "the stamp's CRC is damaged", with_byte(stamped, 44, 0), "batch.corrupt")


def _overlapping(batch: RecordBatch) -> bytes:
    """The body's pointer copied to `routes` as well, so that both are longer than the message together."""
    message = bytearray(forged(batch, {ROUTES: b""}, pair_count=1).message)
    (pointer,) = struct.unpack_from("<Q", message, POINTERS_AT + 8 * BODY)
    struct.pack_into("<Q", message, POINTERS_AT + 8 * ROUTES, pointer + (BODY - ROUTES << 2))
    seal(message)
    return bytes(message)


def _damaged_columns() -> Iterator[Vector]:
    plain, labels, malformed = built(PLAIN), built(LABELS), "batch.malformed"
    index = bytes(labels.raw_fields[ROUTE_INDEX] or b"")
    yield damaged("count-0", "no records", forged(plain, count=0, offset_span=0), malformed)
    yield damaged("count-2", "two records, and columns for one", forged(plain, count=2, offset_span=2), malformed)
    most = forged(plain, count=(1 << 20) + 1, offset_span=(1 << 20) + 1)
    yield damaged("count-most", "more than 1,048,576 records", most, malformed)
    yield damaged("codec", "a codec that nobody knows", forged(plain, codec=9), malformed)
    yield damaged(
        "format", "a body of another protocol, which linn's readers do not read", forged(plain, format=7), malformed
    )
    yield damaged("no-body", "no body", forged(plain, {BODY: None, PRIORITIES: b"\1"}), malformed)
    yield damaged("body-size", "bodyBytes is not the body's size", forged(plain, body_bytes=49), malformed)
    too_large = forged(plain, codec=1, body_bytes=(8 << 20) + 1)
    yield damaged(
        "body-large", "a body that says it has more than 8 MiB when decompressed", too_large, "batch.too_large"
    )
    yield damaged("priorities", "two priorities of one record", forged(plain, {PRIORITIES: b"\1\2"}), malformed)
    yield damaged("pairs-without-routes", "pairCount 1 and no routes", forged(plain, pair_count=1), malformed)
    yield damaged("routes-without-pairs", "routes and pairCount 0", forged(built(PAGE), pair_count=0), malformed)
    yield damaged("index-missing", "two pairs and no index", forged(labels, {ROUTE_INDEX: None}), malformed)
    yield damaged("index-short", "an index that ends early", forged(labels, {ROUTE_INDEX: index[:-2]}), malformed)
    beyond = forged(labels, {ROUTE_INDEX: index[:-2] + b"\x08\0"})
    yield damaged("index-beyond", "a record names pair 8 of 8", beyond, malformed)


def _damaged_offsets() -> Iterator[Vector]:
    three, malformed = built(KEYED[:3]), "batch.malformed"
    for name, what, batch in (
        ("span-0", "a span of no offsets", forged(three, offset_span=0)),
        ("span-small", "three records, and a span of two offsets", forged(three, offset_span=2)),
        ("span-alone", "a span of more offsets than records, and no offsets", forged(three, offset_span=9)),
        ("span-most", "a span of 2^31 offsets", with_gaps(three, [0, 1, 9], 1 << 31)),
        ("offsets-alone", "offsets of a batch without gaps", with_gaps(three, [0, 1, 2], 3)),
        ("offsets-back", "offsets that go back", with_gaps(three, [0, 8, 7], 9)),
        ("offsets-twice", "two records with one offset", with_gaps(three, [0, 7, 7], 9)),
        ("offsets-out", "an offset behind the span", with_gaps(three, [0, 1, 9], 9)),
        ("offsets-most", "an offset of 2^32 - 1", with_gaps(three, [0, 1, (1 << 32) - 1], 9)),
        ("offsets-short", "two offsets of three records", with_gaps(three, [0, 1], 9)),
    ):
        yield damaged(name, what, batch, malformed)


def _damaged_routes() -> Iterator[Vector]:
    malformed = "batch.malformed"
    yield damaged("routes-bytes", "routes that are no message", with_routes(b"\xff" * 64), malformed)
    yield damaged(
        "routes-count", "two pairs where pairCount is 1", with_routes(routes_of([("a", []), ("b", [])])), malformed
    )
    yield damaged(
        "labels-order", "labels that are not sorted", with_routes(routes_of([("", [("b", 1), ("a", 1)])])), malformed
    )
    twice = with_routes(routes_of([("", [("a", 1), ("a", 2)])]))
    yield damaged("labels-twice", "a label twice", twice, malformed)
    most = with_routes(routes_of([("", [(f"{n:03}", 1) for n in range(257)])]))
    yield damaged("labels-most", "257 labels", most, malformed)
    yield damaged("key-long", "a routing key of 4,097 bytes", with_routes(routes_of([("k" * 4_097, [])])), malformed)
    yield damaged(
        "label-kind", "a label of a kind that nobody knows", routes_with(_TRUE, b"\x09" + _TRUE[1:]), malformed
    )
    yield damaged("label-utf-8", "a label's name that is not UTF-8", routes_with(b"late", b"la\xffe"), malformed)
    yield damaged("label-end", "a label's name without its NUL", routes_with(b"late\0", b"lates"), malformed)


_TRUE = struct.pack("<QQ", 3, 1)
"""The numbers of a label that is true: its kind, and its value."""


def _damaged_bodies() -> Iterator[Vector]:
    keys, headers, malformed = built(KEYED), built(HEADERS), "batch.malformed"
    for name, what, columns in (
        ("values-missing", "a body without values", {VALUE_OFFSETS: None}),
        ("values-first", "offsets that begin with 1", {VALUE_OFFSETS: int32s(1, 2, 4, 6, 8)}),
        ("values-last", "offsets that end before the bytes do", {VALUE_OFFSETS: int32s(0, 2, 4, 6, 7)}),
        ("values-back", "offsets that decrease", {VALUE_OFFSETS: int32s(0, 4, 2, 6, 8)}),
        ("values-below", "an offset below 0", {VALUE_OFFSETS: int32s(0, -2, 4, 6, 8)}),
        ("values-short", "too few offsets", {VALUE_OFFSETS: int32s(0, 2, 4, 8)}),
        ("validity", "a bitmap of two bytes for four values", {VALUE_VALIDITY: b"\x0f\0"}),
        ("keys-missing", "offsets of keys and no keys", {KEYS: None}),
        ("times-short", "a timestamp too few", {TIMESTAMPS: bytes(24)}),
    ):
        yield damaged(name, what, with_columns(keys, columns), malformed)
    for name, what, columns in (
        ("header-names-missing", "headers without names", {HEADER_NAME_OFFSETS: None}),
        ("header-offsets", "offsets of headers that decrease", {HEADER_OFFSETS: int32s(0, 6, 3, 5)}),
        ("header-utf-8", "the name of a header that is not UTF-8", {HEADER_NAMES: b"\xff" * 22}),
    ):
        yield damaged(name, what, with_columns(headers, columns), malformed)
    body = forged(keys, {BODY: b"\xff" * 64}, body_bytes=64)
    yield damaged("body-bytes", "a body that is no message", body, malformed)


def _damaged_zstd() -> Iterator[Vector]:
    batch, malformed = built(VALUES[2:3]), "batch.malformed"
    body = body_of(batch)
    frame = zstd_frame(body)
    for name, what, content, size in (
        ("zstd-not", "a body that is not zstd", b"\0" * 64, None),
        ("zstd-no-size", "a frame that does not say its size", zstd_frame(body, says=None, window_log=20), None),
        ("zstd-size", "a frame that says a size other than bodyBytes", zstd_frame(body, says=len(body) + 1), None),
        ("zstd-short", "a frame whose content is shorter than it says", zstd_frame(body[:-8], says=len(body)), None),
        (
            "zstd-long",
            "a frame whose content is longer than it says",
            zstd_frame(body, says=len(body) - 8),
            len(body) - 8,
        ),
        ("zstd-window", "a frame that asks for a window of 16 MiB", zstd_frame(body, window_log=24), None),
        ("zstd-cut", "a frame that is cut short", frame[:-9], None),
        ("zstd-trailing", "a byte behind the frame", frame + b"\0", None),
    ):
        yield damaged(name, what, compressed(batch, content, size), malformed)
