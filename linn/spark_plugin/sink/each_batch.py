"""each_batch: exactly-once writes by `foreachBatch`, for output modes that `writeStream.format` does not take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.sink.batch_identity import digest, name_records, offsets_of, query_of
from linn.spark_plugin.sink.write_options import IDENTITY, NAME, NUMBER


def each_batch(**options: str) -> Callable[[Any, int], None]:
    """Return a function for `foreachBatch` that writes each micro-batch to linn, exactly once.

    Its input identifies a micro-batch, if its sources have topics; for other sources, and with Spark Connect, its rows
    do, which must be the same each time it is run.

    `options` are the options of `format("linn")`; give names with dots as `**{"linn.bootstrap.servers": ...}`. A query
    that writes to several topics in this way needs a `name` for each, which becomes part of the transactional name.
    Spark Connect does not tell the query's id: there `linn.transaction.name` identifies the query, with one name for
    each checkpoint.

    Example:
        write = each_batch(**{"linn.bootstrap.servers": "127.0.0.1:5466"}, topic="counts")
        counts.writeStream.outputMode("update").foreachBatch(write).start()
    """
    return batch_writer(options)


def batch_writer(options: dict[str, str], prefix: str = "spark.") -> Callable[[Any, int], None]:
    """Return the function of `each_batch`; `prefix`: beginning of the transactional name, before the query's id."""
    part, given = options.pop("name", ""), options.pop(NAME, None)

    def write(frame: Any, batch_id: int) -> None:
        query = _query_of(frame, is_named=given is not None)
        name = given if given is not None else f"{prefix}{query}"
        numbered = {**options, NAME: f"{name}.{part}" if part else name, NUMBER: str(batch_id)}
        if query is not None and name_records(offsets := offsets_of(frame, query, batch_id)):
            numbered[IDENTITY] = f"offsets {digest(offsets)}"
        frame.write.format("linn").options(**numbered).mode("append").save()

    return write


def _query_of(frame: Any, *, is_named: bool) -> str | None:
    """Return the id of the query whose micro-batch a frame is; None: it is not known, and `is_named` by an option.

    Raises SparkOptionInvalid.
    """
    if getattr(frame.sparkSession, "sparkContext", None) is None:
        if is_named:
            return None
        raise SparkOptionInvalid(
            f"Spark Connect does not say which query this is: give each_batch the option {NAME}, a name that no other "
            "query has, and a new one with a new checkpoint"
        )
    query = query_of(frame)
    if query is None:
        raise SparkOptionInvalid("each_batch is for foreachBatch of a streaming query")
    return query
