"""Planning of a batch read: the offsets that each task reads. Connects, asks, and closes."""

from __future__ import annotations

from functools import partial

from linn.spark_plugin.connections import patiently
from linn.spark_plugin.errors import SparkDataLost, SparkOptionInvalid
from linn.spark_plugin.source.bounds import PartitionBounds, find_bounds, offsets_of
from linn.spark_plugin.source.options import ReadOptions
from linn.spark_plugin.source.ranges import OffsetRange, Task, tasks


def planned(options: ReadOptions) -> list[Task]:
    """Return the tasks of a batch read. Raises SparkOptionInvalid, SparkDataLost, ConnectFailed and others."""
    with options.broker.connect("linn-spark-planning") as client:
        bounds = patiently(partial(find_bounds, client, options))
        starts, ends = (patiently(partial(offsets_of, client, bound, bounds)) for bound in (options.start, options.end))
    ranges = [_range(partition, starts[partition.place], ends[partition.place], options) for partition in bounds]
    return tasks(ranges, options.partitions_min, options.records_per_partition_max)


def _range(bounds: PartitionBounds, start: int, end: int, options: ReadOptions) -> OffsetRange:
    earliest, latest = bounds.earliest, bounds.latest
    if options.fails_on_data_loss and (start < earliest or end > latest or start > latest):
        raise SparkDataLost(
            f"partition {bounds.partition} of {bounds.topic} has offsets {earliest} to {latest}, and {start} to {end} "
            "were asked for: read what is there with failOnDataLoss=false, or ask for other offsets"
        )
    if start > end and (options.fails_on_data_loss or end >= earliest):  # Otherwise the requested records are gone.
        raise SparkOptionInvalid(
            f"partition {bounds.partition} of {bounds.topic} starts at offset {start}, behind its end, {end}"
        )
    start, end = max(start, earliest), min(end, latest)
    return OffsetRange(bounds.topic, bounds.topic_id, bounds.partition, start, max(start, end))
