"""Arrow in the tasks and micro-batches of the lake formats."""

from __future__ import annotations

import gc

import pyarrow as pa

_frozen: list[bool] = []


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns nullable: the nullability that Spark infers changes with a query's plan."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def freeze_once() -> None:
    """Exempt imported objects from garbage collection, which PySpark's worker runs after every task."""
    if not _frozen:
        _frozen.append(True)
        gc.freeze()
