"""Reading one range of offsets as Arrow batches, in a Spark task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from linn.client.blocking.generated.client import Client
from linn.client.blocking.generated.message import FetchedBatches
from linn.core.errors.auth import AuthFailed
from linn.core.errors.tree import (
    ConnectionLost,
    LinnError,
    OffsetOutOfRange,
    PartitionUnknown,
    RequestTimeout,
    TopicReplaced,
    TopicUnknown,
)
from linn.spark_plugin.connections import OUTAGE_S_MAX, forget_client, patiently, pooled_client
from linn.spark_plugin.errors import SparkDataLost
from linn.spark_plugin.source.arrow_columns import arrow_batch, joined
from linn.spark_plugin.source.options import ReadOptions
from linn.spark_plugin.source.ranges import OffsetRange

FETCH_BYTES_MAX = 4 << 20


def read_range(options: ReadOptions, wanted: OffsetRange, schema: Any) -> Iterator[Any]:
    """Yield the committed records of a range as Arrow batches of `schema`.

    Raises SparkDataLost unless lost records are to be skipped; ConnectionLost, RequestTimeout: the task may run again.
    """
    try:
        yield from _read(pooled_client(options.broker, wait_s=OUTAGE_S_MAX), options, wanted, schema)
    except (AuthFailed, ConnectionLost, RequestTimeout):  # The file may have another login by now.
        forget_client(options.broker)
        raise


def _read(client: Client, options: ReadOptions, wanted: OffsetRange, schema: Any) -> Iterator[Any]:
    offset, fails_on_data_loss = wanted.start, options.fails_on_data_loss
    while offset < wanted.end:
        try:
            fetch = partial(client.fetch, wanted.topic, wanted.partition, offset, bytes_max=FETCH_BYTES_MAX)
            fetched = patiently(partial(fetch, topic_id=wanted.topic_id, where=options.where))
        except (OffsetOutOfRange, TopicReplaced, TopicUnknown, PartitionUnknown) as error:
            if fails_on_data_loss:
                raise _lost(wanted, offset, error) from error
            if not isinstance(error, OffsetOutOfRange):
                return
            start = patiently(partial(client.find_offset, wanted.topic, wanted.partition, "earliest"))
            if start <= offset:
                return  # The end of the log lies before it.
            offset = start
            continue
        yield from joined(_clipped(fetched, wanted, offset, schema))
        if fetched.next_offset <= offset:  # The log ends before the range does: a power failure took its end.
            if fails_on_data_loss:
                raise _lost(wanted, offset, None)
            return
        offset = fetched.next_offset


def _clipped(fetched: FetchedBatches, wanted: OffsetRange, offset: int, schema: Any) -> list[Any]:
    """Convert the records from `offset` up to the end of the range."""
    found = []
    for batch in fetched.batches:
        records = batch.records
        first, last = records.index_at(offset), records.index_at(wanted.end)
        if first < last:
            found.append(arrow_batch(wanted.topic, wanted.partition, records, first, last, schema))
    return found


def _lost(wanted: OffsetRange, offset: int, error: LinnError | None) -> SparkDataLost:
    why = f": {error.text}" if error is not None else ""
    return SparkDataLost(
        f"offsets {offset} to {wanted.end} of partition {wanted.partition} of {wanted.topic} are gone{why}; "
        "failOnDataLoss=false passes over them"
    )
