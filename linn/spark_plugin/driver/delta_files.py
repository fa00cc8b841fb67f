"""Parquet files of a Delta table, written by the tasks of a micro-batch."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from linn.spark_plugin.driver.arrow_tasks import freeze_once

_ROWS_PER_GROUP_MIN, _ROWS_PER_GROUP_MAX = 1 << 16, 1 << 20
_NULL = "__HIVE_DEFAULT_PARTITION__"


def written_files(
    batches: Iterable[pa.RecordBatch], *, path: str, storage: Mapping[str, str], partition_by: Sequence[str]
) -> list[dict[str, Any]]:
    """Write the rows of one task, and return the entry of each file for Delta's log.

    Every attempt of a task uses new names, so that two attempts never write the same file.
    """
    freeze_once()
    incoming = iter(batches)
    first = next((batch for batch in incoming if batch.num_rows), None)
    if first is None:
        return []
    found: list[dict[str, Any]] = []
    schema = first.schema
    partitioning = ds.partitioning(pa.schema([schema.field(name) for name in partition_by]), flavor="hive")
    ds.write_dataset(
        chain([first], incoming),
        "",
        schema=schema,
        filesystem=fs.PyFileSystem(DeltaStorageHandler(path, dict(storage))),
        format="parquet",
        partitioning=partitioning if partition_by else None,
        basename_template=f"linn-{uuid.uuid4()}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
        file_visitor=lambda file: found.append(_action(file, partition_by)),
        min_rows_per_group=_ROWS_PER_GROUP_MIN,
        max_rows_per_group=_ROWS_PER_GROUP_MAX,
        use_threads=False,
        create_dir=False,
    )
    return found


def _action(file: Any, partition_by: Sequence[str]) -> dict[str, Any]:
    path = file.path.lstrip("/")
    values = dict(part.split("=", 1) for part in path.split("/")[:-1])
    return {
        "path": path,
        "size": file.size,
        "partition_values": {name: _value(values[name]) for name in partition_by},
        "time_ms": time.time_ns() // 1_000_000,
        "stats": json.dumps(statistics(file.metadata)),
    }


def _value(text: str) -> str | None:
    return None if text == _NULL else unquote(text)


def statistics(metadata: Any) -> dict[str, Any]:
    """Return the statistics by which readers skip a file: rows, nulls, and bounds of integers."""
    nulls: dict[str, int] = {}
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    without: list[str] = []
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None or not found.has_null_count:
                without.append(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max and isinstance(found.min, int) and not isinstance(found.min, bool):
                lowest[name] = min(found.min, lowest.get(name, found.min))
                highest[name] = max(found.max, highest.get(name, found.max))
            elif found.null_count < column.num_values + found.null_count and column.num_values:
                without.append(f"{name} bounds")
    known = {name: count for name, count in nulls.items() if name not in without}
    bounded = [name for name in lowest if name in known and f"{name} bounds" not in without]
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: lowest[name] for name in bounded},
        "maxValues": {name: highest[name] for name in bounded},
        "nullCount": known,
    }
