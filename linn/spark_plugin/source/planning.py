"""Planning: find the topics of a job and, for each partition, the offsets to read. Connects, asks, and closes.

Law: the end of a range is the stable offset or lies before it, so that a job reads committed data only.
"""

from __future__ import annotations

import re
from uuid import UUID

from linn.client.blocking.client import Client, connect
from linn.spark_plugin.errors import SparkDataLost, SparkOptionInvalid
from linn.spark_plugin.source.options import EARLIEST, LATEST, Bound, ReadOptions
from linn.spark_plugin.source.ranges import OffsetRange, split
from linn.wire.messages import TopicInfo


def planned(options: ReadOptions) -> list[OffsetRange]:
    """Return the ranges that the tasks of a batch read have.

    Raises SparkOptionInvalid, SparkDataLost, ConnectFailed and others.
    """
    with connect(options.url, name="linn-spark-planning") as client:
        places = _places(client, options)
        _check_named(options.start, "startingOffsets", places)
        _check_named(options.end, "endingOffsets", places)
        ranges = [_range(client, topic, partition, options) for topic, partitions in places for partition in partitions]
    return split(ranges, options.partitions_min, options.records_per_partition_max)


Places = list[tuple[TopicInfo, tuple[int, ...]]]


def _places(client: Client, options: ReadOptions) -> Places:
    """Return the topics and partitions to read. Raises SparkOptionInvalid where one does not exist."""
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = [topic for topic in client.describe().topics if pattern.fullmatch(topic.name)]
        return [(topic, tuple(range(len(topic.partitions)))) for topic in topics]
    assigned = options.assigned
    names = options.topics if assigned is None else tuple(assigned)
    found: Places = []
    for topic in client.describe(*names).topics:
        if not topic.kind:
            raise SparkOptionInvalid(f"the broker has no topic {topic.name}")
        count = len(topic.partitions)
        partitions = tuple(range(count)) if assigned is None else assigned[topic.name]
        if any(partition >= count for partition in partitions):
            raise SparkOptionInvalid(f"assign names partition {max(partitions)} of {topic.name}, which has {count}")
        found.append((topic, partitions))
    return found


def _check_named(bound: Bound, option: str, places: Places) -> None:
    """Check that offsets are given for the partitions that are read and no others. Raises SparkOptionInvalid."""
    if bound.offsets is None:
        return
    given = {(topic, partition) for topic, partitions in bound.offsets.items() for partition in partitions}
    read = {(topic.name, partition) for topic, partitions in places for partition in partitions}
    for topic, partition in sorted(read - given):
        raise SparkOptionInvalid(f"{option} has no offset for partition {partition} of {topic}")
    for topic, partition in sorted(given - read):
        raise SparkOptionInvalid(f"{option} has an offset for partition {partition} of {topic}, which is not read")


def _range(client: Client, topic: TopicInfo, partition: int, options: ReadOptions) -> OffsetRange:
    earliest = client.find_offset(topic.name, partition, EARLIEST)
    latest = client.find_offset(topic.name, partition, LATEST)

    def place(bound: Bound) -> int:
        if bound.timestamp_ms is not None:
            return client.find_offset(topic.name, partition, bound.timestamp_ms)
        offset = bound.default if bound.offsets is None else bound.offsets[topic.name][partition]
        return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)

    start, end = place(options.start), place(options.end)
    if options.fails_on_data_loss and (start < earliest or end > latest or start > latest):
        raise SparkDataLost(
            f"partition {partition} of {topic.name} has offsets {earliest} to {latest}, and {start} to {end} were "
            "asked for: read what is there with failOnDataLoss=false, or ask for other offsets"
        )
    start, end = max(start, earliest), min(end, latest)
    topic_id = UUID(int=topic.id_high << 64 | topic.id_low)
    return OffsetRange(topic.name, topic_id, partition, start, max(start, end))
