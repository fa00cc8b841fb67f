"""Arrow batches as messages: the columns of each topic and partition, as `Producer.publish_many` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from linn.core.batch.record import RESERVED_LABELS
from linn.core.errors.tree import MessageInvalid
from linn.spark_plugin.sink.write_options import TYPES

Columns = dict[str, Any]
"""Arguments of `publish_many`."""


def parts(batch: Any, *, has_target: bool) -> Iterator[tuple[str | None, int | None, Any]]:
    """Yield the rows of an Arrow batch by topic and partition, in order; None for what the rows do not name.

    `has_target`: an option names the topic or the exchange, so that the column `topic` is ignored. Raises
    MessageInvalid: a row has no topic, and needs one.
    """
    names = batch.schema.names
    for topic, rows in _split(batch, "topic") if not has_target else ((None, batch),):
        if not topic and not has_target:
            raise MessageInvalid("a row has no topic: the column topic is null or empty")
        yield from ((topic, partition, some) for partition, some in _split(rows, "partition", "partition" in names))


def _split(batch: Any, name: str, is_there: bool = True) -> Iterator[tuple[Any, Any]]:
    if not is_there:
        yield None, batch
        return
    column = batch.column(batch.schema.names.index(name))
    distinct = pc.unique(column).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], batch
        return
    for value in distinct:
        mask = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        yield value, batch.filter(mask)


def columns_of(batch: Any) -> tuple[list[bytes | None], Columns]:
    """Return the values of an Arrow batch, and the other arguments of `publish_many`."""
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    found: Columns = {}
    if "key" in there and there["key"].null_count < batch.num_rows:
        found["keys"] = _bytes(there["key"])
    if "routing_key" in there:
        found["routing_keys"] = _alike(there["routing_key"].fill_null(""))
    if "labels" in there:
        found["labels"] = [_own(entries or ()) for entries in there["labels"].to_pylist()]
    if "headers" in there:
        found["headers"] = [
            [(entry["key"], entry["value"]) for entry in entries or () if entry is not None]
            for entries in there["headers"].to_pylist()
        ]
    return _bytes(there["value"]), found


def _own(labels: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the labels that a broker accepts: rows of a dead-letter topic have labels that only the broker writes."""
    return {name: value for name, value in labels if not name.startswith(RESERVED_LABELS)}


def checksum(batch: Any) -> int:
    """Return a checksum of the rows of a write; checksums of batches add up in any order."""
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    total = 0
    for weight, name in enumerate(TYPES, 1):
        if name in there:
            total += weight * sum(map(crc32, _encoded(there[name])))
    return total


def _encoded(column: Any) -> Iterator[bytes]:
    """Return the values of a column as bytes, without nulls and empty ones."""
    if pa.types.is_nested(column.type):
        return (repr(value).encode() for value in column.to_pylist() if value)
    return filter(None, _bytes(column if not pa.types.is_integer(column.type) else column.cast(pa.string())))


def _bytes(column: Any) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _alike(column: Any) -> str | list[str]:
    """Return the texts, or one text if all are equal."""
    distinct = pc.unique(column)
    found: str | list[str] = distinct[0].as_py() if len(distinct) == 1 else column.to_pylist()
    return found
