"""Arrow in the tasks and micro-batches of the lake formats."""

from __future__ import annotations

import gc

import pyarrow as pa

_frozen: list[bool] = []


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose columns may be null: what Spark infers about nulls changes with a query's plan."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def freeze_once() -> None:
    """Take what was imported out of the collector's sight: PySpark's worker collects garbage after every task."""
    if not _frozen:
        _frozen.append(True)
        gc.freeze()
