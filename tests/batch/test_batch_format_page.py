"""docs/reference/batch-format.md says what the code does: its tables, its limits, its example byte by byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from linn.core.batch import schema
from linn.core.batch.batch import BatchLimits, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Record
from linn.core.batch.routes import LABELS_MAX, PAIRS_MAX, ROUTES_BYTES_MAX, TEXT_BYTES_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "batch-format.md").read_text(encoding="utf-8")
BITS = {"int64": 64, "uint64": 64, "int32": 32, "uint32": 32, "uint16": 16, "uint8": 8}
RECORDS = [
    Record(
        value=b"hello",
        key=b"k",
        routing_key="a.b",
        labels={"late": True},
        headers=(("h", b"1"),),
        timestamp_ms=1_700_000_000_000,
    ),
    Record(value=None, key=b"k", routing_key="a.b", labels={"late": True}, timestamp_ms=1_700_000_000_001),
]


def hex_blocks() -> list[tuple[int, bytes]]:
    """The first place and the bytes of each hex block."""
    blocks = []
    for block in re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL):
        lines = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?){8})", block, re.MULTILINE)
        assert [int(place) for place, _ in lines] == [int(lines[0][0]) + 8 * n for n in range(block.count("\n"))]
        blocks.append((int(lines[0][0]), bytes.fromhex("".join(octets for _, octets in lines))))
    return blocks


def slots(module: Any) -> list[tuple[str, str, int]]:
    """Name, type and offset (in units of the type's size) of each field of a struct."""
    fields = sorted(module.schema.node.struct.fields, key=lambda field: field.ordinal.explicit)
    return [(str(field.name), str(field.slot.type.which()), int(field.slot.offset)) for field in fields]


def test_the_worked_example_is_what_the_builder_writes_and_the_leader_stamps() -> None:
    batch = build_from_records(RECORDS, base_id=0x018BCFE5_6800_7ABC_8DEF_000000000000)
    (_, sealed), (stamp_at, stamp) = hex_blocks()
    assert bytes(batch.message) == sealed
    batch.stamp(41, 1_700_000_000_500, 40, 3)
    assert bytes(batch.message) == sealed[:stamp_at] + stamp + sealed[stamp_at + len(stamp) :]


def test_the_worked_example_can_be_stored_and_read() -> None:
    (_, sealed), (stamp_at, stamp) = hex_blocks()
    batch = RecordBatch(sealed[:stamp_at] + stamp + sealed[stamp_at + len(stamp) :])
    batch.check_stored()
    batch.verify(BatchLimits())
    first, second = batch.records()
    assert (first.value, first.headers, first.labels) == (b"hello", (("h", b"1"),), {"late": True})
    assert (second.value, second.key, second.timestamp_ms) == (None, b"k", 1_700_000_000_001)
    assert str(first.id) == "018bcfe5-6800-7abc-8def-000000000000"


def test_the_tables_name_every_number_at_its_place_and_every_field_at_its_pointer() -> None:
    numbers = [row for row in slots(schema.load("batch").RecordBatch) if row[1] != "data"]
    rows = re.findall(r"^\| (\d+) \| (U?Int\d+) \| (\w+) \|", PAGE, re.MULTILINE)
    assert [(int(place), kind.lower(), name) for place, kind, name in rows] == sorted(
        (DATA_AT + offset * BITS[kind] // 8, kind, name) for name, kind, offset in numbers
    )
    fields = [
        (offset, name)
        for module in (schema.load("batch").RecordBatch, schema.load("batch").Body)
        for name, kind, offset in slots(module)
        if kind == "data"
    ]
    rows = re.findall(r"^\| (\d+) \| ([a-z]\w+) \| [^|]*\| [^|]+\|$", PAGE, re.MULTILINE)
    assert [(int(pointer), name) for pointer, name in rows] == fields


def test_the_page_names_the_limits() -> None:
    for limit in (BatchLimits().records_max, PAIRS_MAX, LABELS_MAX, TEXT_BYTES_MAX, ROUTES_BYTES_MAX):
        assert f" {limit:,}" in PAGE
    assert BatchLimits().batch_bytes_max == 8 << 20
    assert "8 MiB" in PAGE
    assert crc32c(b"123456789") == int(re.search(r"`123456789` it is (0x\w+)", PAGE).group(1), 16)  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 1_000])
def test_the_program_on_the_page_writes_a_batch(count: int) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    model = build_from_records([Record(value=b"v", timestamp_ms=5)] * count, base_id=0)
    names = {"batch": schema.load("batch"), "crc32c": crc32c, "count": count, "timestamp_ms": 5}
    names["body"] = bytes(model.raw_fields[0] or b"")
    exec(program, names)
    batch = RecordBatch(names["sealed"])
    batch.verify(BatchLimits())
    assert batch.records() == model.records()
