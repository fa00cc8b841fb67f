"""Spark reads and writes topics: register `LinnDataSource` with the session, then `format("linn")`.

Law: importing this package imports neither PySpark nor pyarrow; asking for `LinnDataSource` does. It needs the extra
`linn[spark]`.

Read on: `data_source` (what Spark asks for), `source` (`options`, `bounds`, `planning` and `stream_offset`: which
offsets a job reads; `reading`, `arrow_columns`: batches as Arrow), `sink` (`job`: the transaction of a write;
`messages`: Arrow as messages), `connections` (one client a process).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linn.spark_plugin.data_source import LinnDataSource as LinnDataSource
    from linn.spark_plugin.sink.each_batch import each_batch as each_batch

__all__ = ["LinnDataSource", "each_batch"]


def __getattr__(name: str) -> Any:
    if name == "each_batch":
        return import_module("linn.spark_plugin.sink.each_batch").each_batch
    if name != "LinnDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("linn.spark_plugin.data_source").LinnDataSource
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow", "py4j"):
            raise
        raise ImportError(
            "linn's Spark source needs PySpark and pyarrow: pip install 'linn[spark]' (and Java 17 or newer)"
        ) from error
