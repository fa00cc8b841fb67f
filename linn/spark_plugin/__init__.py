"""Spark reads topics: `spark.dataSource.register(linn.spark_plugin.LinnDataSource)`, then `format("linn")`.

Law: importing this package imports neither PySpark nor pyarrow; asking for `LinnDataSource` does. It needs the extra
`linn[spark]`.

Read on: `options`, `ranges` (the offsets that a job reads), `arrow_columns` (batches as Arrow), `connections` (one
client a process), `planning`, `source`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linn.spark_plugin.data_source import LinnDataSource as LinnDataSource

__all__ = ["LinnDataSource"]


def __getattr__(name: str) -> Any:
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
