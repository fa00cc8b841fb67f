"""flat_message and pycapnp read what the other writes: an independent oracle for every field of both schemas."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import capnp
import pytest
from any_records import contents, published, record_lists
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch import flat_message, schema
from linn.core.batch.batch import FIELD_COUNT, NUMBER_BYTES, BatchLimits, RecordBatch, seal
from linn.core.batch.builder import build_from_records
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Record
from linn.core.errors.tree import BatchMalformed

NUMBERS = {
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
DATA = [
    "body", "routes", "routeIndex", "keyHashes", "priorities", "delaysMs", "ttlsMs", "ids", "offsetDeltas",
    "duesMs",
]  # fmt: skip
BODY = [
    "valueOffsets", "values", "timestampsMs", "keyOffsets", "keys", "keyValidity", "valueValidity", "headerOffsets",
    "headerNameOffsets", "headerNames", "headerValueOffsets", "headerValues", "headerValidity",
]  # fmt: skip
FIELDS = st.lists(st.none() | st.binary(max_size=20), min_size=FIELD_COUNT, max_size=FIELD_COUNT).filter(any)
"""Fields of a batch, one of them with bytes."""


def in_one_segment(module: Any, **fields: object) -> bytes:
    """Encode a message as a Cap'n Proto library does, its fields set in random order."""
    words = 64 + sum(2 + len(field) // 8 for field in fields.values() if isinstance(field, bytes))
    message = module.new_message(num_first_segment_words=words)
    for name in random.Random(len(fields)).sample(sorted(fields), len(fields)):
        setattr(message, name, fields[name])
    return bytes(message.to_bytes())


def as_fields(message: Any, names: list[str]) -> list[bytes | None]:
    return [bytes(getattr(message, name)) if message._has(name) else None for name in names]


def as_bytes(fields: list[memoryview | None]) -> list[bytes | None]:
    return [bytes(field) if field is not None else None for field in fields]


def test_the_schema_has_no_field_that_these_tests_do_not_compare() -> None:
    module = schema.load("batch")
    assert set(module.RecordBatch.schema.fields) == {*NUMBERS, *DATA, "idHigh", "idLow"}
    assert list(module.Body.schema.fieldnames) == BODY


@given(st.binary(min_size=NUMBER_BYTES, max_size=NUMBER_BYTES), FIELDS)
def test_pycapnp_reads_every_field_that_flat_message_writes(numbers: bytes, fields: list[bytes | None]) -> None:
    data = bytes(flat_message.encode(numbers, fields))
    batch = RecordBatch(data)
    with schema.load("batch").RecordBatch.from_bytes(data) as message:
        assert {name: getattr(message, name) for name in NUMBERS} == {
            name: getattr(batch, attribute) for name, attribute in NUMBERS.items()
        }
        assert message.idHigh << 64 | message.idLow == batch.base_id
        assert as_fields(message, DATA) == fields == as_bytes(list(batch.raw_fields))


@given(FIELDS, st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1))
def test_flat_message_reads_every_field_that_pycapnp_writes(
    fields: list[bytes | None], count: int, base_offset: int
) -> None:
    present = {name: field for name, field in zip(DATA, fields, strict=True) if field is not None}
    data = in_one_segment(schema.load("batch").RecordBatch, count=count, baseOffset=base_offset, idLow=7, **present)
    batch = RecordBatch(data)
    assert as_bytes(list(batch.raw_fields)) == fields
    assert (batch.count, batch.base_offset, batch.base_id) == (count, base_offset, 7)


@settings(max_examples=50, deadline=None)
@given(record_lists())
def test_a_body_reads_and_writes_the_same_through_pycapnp(records: list[Record]) -> None:
    body = bytes(build_from_records(records, base_id=0).raw_fields[0] or b"")
    fields = as_bytes(flat_message.decode(memoryview(body), 0, len(BODY)))
    with schema.load("batch").Body.from_bytes(body) as message:
        assert as_fields(message, BODY) == fields
    present = {name: field for name, field in zip(BODY, fields, strict=True) if field is not None}
    again = in_one_segment(schema.load("batch").Body, **present)
    assert as_bytes(flat_message.decode(memoryview(again), 0, len(BODY))) == fields


def test_a_message_that_a_library_spread_over_segments_is_refused() -> None:
    message = schema.load("batch").RecordBatch.new_message(num_first_segment_words=16)
    message.body = bytes(1_000)
    with pytest.raises(BatchMalformed, match="one segment"):
        RecordBatch(message.to_bytes())


# --- a newer version of the schema, with more numbers and more fields ---


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    text = (schema.SCHEMA_DIR / "batch.capnp").read_text()
    for end_of_struct, more in (
        ("duesMs           @30 :Data;", "flag @31 :Bool; counter @32 :UInt64; column @33 :Data; label @34 :Text;"),
        ("headerValidity     @12 :Data;", "moreOffsets @13 :Data; size @14 :UInt64;"),
    ):
        assert text.count(end_of_struct) == 1
        text = text.replace(end_of_struct, f"{end_of_struct} {more}")
    path: Path = tmp_path_factory.mktemp("newer") / "newer_batch.capnp"
    path.write_text(text.replace("@0xd3a1f0a6c3b57e21", "@0xd3a1f0a6c3b57e22"))
    return capnp.SchemaParser().load(str(path))


@settings(max_examples=50, deadline=None)
@given(record_lists())
def test_a_batch_of_a_newer_writer_is_verified_stamped_read_and_carried_whole(
    newer: Any, records: list[Record]
) -> None:
    old = build_from_records(records, base_id=1)
    body_fields = as_bytes(flat_message.decode(old.raw_fields[0], 0, len(BODY)))  # type: ignore[arg-type]
    present = {name: field for name, field in zip(BODY, body_fields, strict=True) if field is not None}
    body = in_one_segment(newer.Body, moreOffsets=b"new", size=9, **present)
    fields = {
        name: field for name, field in zip(DATA, as_bytes(list(old.raw_fields)), strict=True) if field is not None
    }
    numbers = {name: getattr(old, attribute) for name, attribute in NUMBERS.items()}
    more = {"flag": True, "counter": 2**64 - 1, "column": b"new column", "label": "new text"}
    ours = {**numbers, **fields, "idLow": 1, "body": body, "bodyBytes": len(body)}
    frame = bytearray(in_one_segment(newer.RecordBatch, **more, **ours))
    seal(frame)
    batch = RecordBatch(frame)
    batch.verify(BatchLimits())
    batch.stamp(5, 6, 7, 8)
    batch.check_stored()
    assert contents(batch) == published(records, 1)
    with newer.RecordBatch.from_bytes(bytes(frame)) as message:
        assert {name: getattr(message, name) for name in more} == more
        assert (message.baseOffset, message.leaderEpoch) == (5, 8)
    with newer.RecordBatch.from_bytes(bytes(old.message)) as message:
        assert (message.counter, message.column, message.count) == (0, b"", len(records))


def test_a_root_struct_with_fewer_numbers_than_the_first_version_is_refused() -> None:
    with pytest.raises(BatchMalformed, match="too few"):
        RecordBatch(flat_message.encode(bytes(NUMBER_BYTES - 8), [b"padding to be long enough"] * FIELD_COUNT))


@given(FIELDS)
def test_null_pointers_at_the_end_are_left_out_and_read_as_absent_fields(fields: list[bytes | None]) -> None:
    message = flat_message.encode(bytes(NUMBER_BYTES), fields)
    used = max(index for index, field in enumerate(fields, 1) if field is not None)
    assert struct.unpack_from("<H", message, 14) == (used,)
    assert as_bytes(list(RecordBatch(message).raw_fields)) == fields


def test_a_batch_of_one_plain_record_of_100_bytes_takes_280() -> None:
    assert build_from_records([Record(value=bytes(100))], base_id=0).size == 280


def test_the_stamp_is_at_its_place_in_the_schema() -> None:
    batch = build_from_records([Record()], base_id=0)
    batch.stamp(1, 2, 3, 4)
    assert struct.unpack_from("<qqqi", batch.message, DATA_AT) == (1, 2, 3, 4)
