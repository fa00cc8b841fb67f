"""Record batches as Arrow batches: keys, values and headers stay where they are, and no column loops over records.

The id is the exception: if it is requested, and a batch has only a base id, the ids are built one by one.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from linn.core.batch.batch import ID_MASK, RecordBatch
from linn.core.batch.body import HeaderColumn
from linn.core.batch.column import BinaryColumn
from linn.core.batch.flat_message import Buffer
from linn.core.batch.record import LabelValue
from linn.core.errors.tree import BatchMalformed

_TIME = pa.timestamp("us", tz="UTC")
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_LABELS = pa.map_(pa.string(), pa.string())
_FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIME),
    ("timestampType", pa.int32()),
    ("routing_key", pa.string()),
    ("labels", _LABELS),
]
_CREATE_TIME = 0
"""`timestampType` in Spark's Kafka source: the producer's time."""
_I64_US_MAX = ((1 << 63) - 1) // 1000


def arrow_schema(*, includes_headers: bool, includes_id: bool) -> Any:
    """Return the Arrow schema of the columns, exactly as `data_source.columns` declares them."""
    more = [("headers", _HEADERS)] if includes_headers else []
    return pa.schema([*_FIELDS, *more, *([("id", pa.binary())] if includes_id else [])])


def arrow_batch(topic: str, partition: int, records: RecordBatch, first: int, last: int, schema: Any) -> Any:
    """Return the records from index `first` to `last` (exclusive) as an Arrow batch of `schema`.

    The result refers to the bytes of `records`. Raises BatchMalformed.
    """
    count, body = records.count, records.body()
    columns = {
        "key": _binary(body.keys, count) if body.keys is not None else _constant(None, pa.binary(), count),
        "value": _binary(body.values, count),
        "topic": _constant(topic, pa.string(), count),
        "partition": _constant(partition, pa.int32(), count),
        "offset": _offsets(records),
        "timestamp": _times(body.timestamps_ms, int(records.first_timestamp_ms), count),
        "timestampType": _constant(_CREATE_TIME, pa.int32(), count),
    }
    columns["routing_key"], columns["labels"] = _routes(records)
    if "headers" in schema.names:
        columns["headers"] = _headers(body.headers, count)
    if "id" in schema.names:
        columns["id"] = _ids(records)
    whole = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return whole if last - first == count else whole.slice(first, last - first)


def joined(batches: list[Any]) -> list[Any]:
    """Copy small Arrow batches into one, since each costs Spark as much as thousands of rows."""
    if len(batches) < 2 or sum(batch.num_rows for batch in batches) > 1024 * len(batches):
        return batches
    found: list[Any] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


@lru_cache(maxsize=128)
def _constant(value: object, kind: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=64)
def _indexes(count: int) -> Any:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", range(count)))])


def _buffer(data: Buffer | None) -> Any:
    return None if data is None else pa.py_buffer(data)


def _binary(column: BinaryColumn, count: int, kind: Any = None) -> Any:
    buffers = [_buffer(column.validity), _buffer(column.offsets), _buffer(column.data)]
    return pa.Array.from_buffers(kind or pa.binary(), count, buffers)


def _offsets(records: RecordBatch) -> Any:
    base, deltas = pa.scalar(int(records.base_offset), pa.int64()), records.offset_deltas
    if deltas is None:
        return pc.add(_indexes(records.count), base)
    return pc.add(
        pa.Array.from_buffers(pa.uint32(), records.count, [None, pa.py_buffer(deltas)]).cast(pa.int64()), base
    )


def _times(times: Buffer | None, first_ms: int, count: int) -> Any:
    """Return the timestamps in microseconds; null for times that do not fit into 64 bits."""
    if times is None:
        return _constant(first_ms * 1000 if abs(first_ms) <= _I64_US_MAX else None, _TIME, count)
    column = pa.Array.from_buffers(pa.timestamp("ms", tz="UTC"), count, [None, pa.py_buffer(times)])
    try:
        return column.cast(_TIME)
    except pa.ArrowInvalid:
        numbers = column.cast(pa.int64())
        fits = pc.and_(pc.less_equal(numbers, _I64_US_MAX), pc.greater_equal(numbers, -_I64_US_MAX))
        return pc.if_else(fits, column, None).cast(_TIME)


def _routes(records: RecordBatch) -> tuple[Any, Any]:
    """Return the routing keys and the labels, as dictionary columns over the few distinct pairs."""
    if not records.pair_count:
        return _no_routes(records.count)
    pairs, index = records.pairs(), records.route_index
    keys = pa.array([pair.routing_key for pair in pairs], pa.string())
    labels = pa.array([[(name, label_text(value)) for name, value in pair.labels] for pair in pairs], _LABELS)
    if index is None:
        which = _constant(0, pa.uint16(), records.count)
    else:
        which = pa.Array.from_buffers(pa.uint16(), records.count, [None, pa.py_buffer(index)])
    return keys.take(which), labels.take(which)


@lru_cache(maxsize=64)
def _no_routes(count: int) -> tuple[Any, Any]:
    return pa.repeat(pa.scalar("", pa.string()), count), pa.array([[]] * count, _LABELS)


def label_text(value: LabelValue) -> str:
    """Return a label's value as text, with the words of JSON for bools."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _headers(headers: HeaderColumn | None, count: int) -> Any:
    """Return the headers, null where a record has none. Raises BatchMalformed: a name is not UTF-8."""
    if headers is None:
        return _constant(None, _HEADERS, count)
    entries = len(headers.names)
    names = _binary(headers.names, entries, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BatchMalformed("the name of a header is not UTF-8") from error
    pairs = pa.StructArray.from_arrays([names, _binary(headers.values, entries)], fields=list(_HEADER))
    ends = pa.py_buffer(headers.offsets)
    lengths = pc.list_value_length(pa.Array.from_buffers(_HEADERS, count, [None, ends], children=[pairs]))
    has_some = pc.greater(lengths, 0).buffers()[1]
    return pa.Array.from_buffers(_HEADERS, count, [has_some, ends], children=[pairs])


def _ids(records: RecordBatch) -> Any:
    given = records.ids
    if given is None:
        base = records.base_id
        data = b"".join([(base + index & ID_MASK).to_bytes(16, "big") for index in range(records.count)])
    else:
        data = bytes(given)
    return pa.Array.from_buffers(pa.binary(16), records.count, [None, pa.py_buffer(data)]).cast(pa.binary())
