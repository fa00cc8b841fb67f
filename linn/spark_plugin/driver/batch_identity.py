"""The identity of a micro-batch: the pair by which a write is done once."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame

from linn.spark_plugin.sink.each_batch import QUERY_ID

NEW_CHECKPOINT = "newCheckpoint"
"""Option of the lake formats: begin with a new checkpoint on a table that the pipeline has written to before."""


class BatchIdentity(NamedTuple):
    """A query, which lives as long as its checkpoint, and the number of a micro-batch in it."""

    query_id: str
    batch_id: int


def identity_of(batch: DataFrame, batch_id: int) -> BatchIdentity:
    """Return the identity of a micro-batch, inside of `foreachBatch`."""
    query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    assert query_id, "Spark names the query to the thread that runs its micro-batches"
    return BatchIdentity(query_id, batch_id)
