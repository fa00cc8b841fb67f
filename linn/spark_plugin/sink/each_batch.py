"""each_batch: writes of `foreachBatch`, done once, for output modes that `writeStream.format` does not take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.sink.write_options import NAME, NUMBER

QUERY_ID = "sql.streaming.queryId"
"""Spark's property that has the id of the query whose micro-batch is being written."""


def each_batch(**options: str) -> Callable[[Any, int], None]:
    """Return a function for `foreachBatch` that writes each micro-batch to linn, exactly once.

    `options` are those of `format("linn")`; give the ones with dots as `**{"linn.bootstrap.servers": ...}`. A query
    that writes to several topics with it needs a `name` for each, which is part of the transactions' name. Spark
    Connect does not say which query it is: there `linn.transaction.name` names it, one name for each checkpoint.

    Example:
        write = each_batch(**{"linn.bootstrap.servers": "127.0.0.1:5466"}, topic="counts")
        counts.writeStream.outputMode("update").foreachBatch(write).start()
    """
    part, given = options.pop("name", ""), options.pop(NAME, None)

    def write(frame: Any, batch_id: int) -> None:
        query = given if given is not None else f"spark.{_query_of(frame)}"
        name = f"{query}.{part}" if part else query
        numbered = {**options, NAME: name, NUMBER: str(batch_id)}
        frame.write.format("linn").options(**numbered).mode("append").save()

    return write


def _query_of(frame: Any) -> str:
    """Return the id of the query whose micro-batch a frame is. Raises SparkOptionInvalid."""
    context = getattr(frame.sparkSession, "sparkContext", None)
    if context is None:
        raise SparkOptionInvalid(
            f"Spark Connect does not say which query this is: give each_batch the option {NAME}, a name that no other "
            "query has, and a new one with a new checkpoint"
        )
    query: str | None = context.getLocalProperty(QUERY_ID)
    if query is None:
        raise SparkOptionInvalid("each_batch is for foreachBatch of a streaming query")
    return query
