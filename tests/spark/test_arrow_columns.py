"""Record batches as Arrow batches: row by row what the batch says."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'linn[spark]'")

from linn.core.batch.batch import Codec, RecordBatch  # noqa: E402
from linn.core.batch.builder import build_from_records  # noqa: E402
from linn.core.batch.record import Record  # noqa: E402
from linn.spark_plugin.source.arrow_columns import arrow_batch, arrow_schema, joined, label_text  # noqa: E402

SCHEMA = arrow_schema(includes_headers=True, includes_id=True)
PLAIN = [Record(value=b"v%d" % number, timestamp_ms=5) for number in range(9)]
MIXED = [
    Record(value=None, key=b"k", routing_key="a.b", labels={"late": True, "n": 1}, timestamp_ms=-1),
    Record(value=b"", key=None, headers=(("h", b"1"), ("h", None)), timestamp_ms=1_700_000_000_123),
    Record(value=b"x" * 300, key=b"", routing_key="a.c", labels={"f": 1.5, "t": "ü"}, timestamp_ms=2),
]
WITH_IDS = [Record(value=b"1", id=UUID(int=7)), Record(value=b"2", id=UUID(int=1 << 127))]


def expected(records: RecordBatch, index: int) -> dict[str, Any]:
    record = records.record(index)
    return {
        "key": record.key,
        "value": record.value,
        "topic": "flights",
        "partition": 3,
        "offset": records.offset(index),
        "timestamp": record.timestamp_ms * 1000,
        "timestampType": 0,
        "routing_key": record.routing_key,
        "labels": [(name, label_text(value)) for name, value in record.labels.items()],
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        "id": records.id(index).bytes,
    }


def rows(batch: Any) -> list[dict[str, Any]]:
    batch.validate(full=True)
    at = batch.schema.names.index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


def built(content: list[Record], codec: Codec = Codec.NONE) -> RecordBatch:
    records = build_from_records(content, base_id=(1 << 128) - 2, codec=codec)
    records.stamp(1_000, 0)
    return records


@pytest.mark.parametrize("content", [PLAIN, MIXED, WITH_IDS], ids=["plain", "mixed", "ids"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_rows_are_the_records(content: list[Record], codec: Codec) -> None:
    records = built(content, codec)
    found = arrow_batch("flights", 3, records, 0, records.count, SCHEMA)
    assert found.schema.equals(SCHEMA)
    assert rows(found) == [expected(records, index) for index in range(records.count)]


def test_a_part_of_a_batch_is_clipped() -> None:
    records = built(MIXED)
    assert rows(arrow_batch("flights", 3, records, 1, 2, SCHEMA)) == [expected(records, 1)]


def test_a_time_that_does_not_fit_is_null() -> None:
    records = built([Record(timestamp_ms=(1 << 63) - 1), Record(timestamp_ms=5)])
    assert [row["timestamp"] for row in rows(arrow_batch("flights", 3, records, 0, 2, SCHEMA))] == [None, 5000]


def test_small_batches_are_joined() -> None:
    small = arrow_batch("flights", 3, built(PLAIN), 0, 9, SCHEMA)
    (found,) = joined([small, small])
    assert found.num_rows == 18
    assert found.schema.equals(SCHEMA)
    assert joined([small]) == [small]
