"""Bounds of partitions, and the offsets that options and times stand for, as a given client finds them.

Law: the end of a partition is its stable offset, so that a job reads committed data only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from linn.client.blocking.generated.client import Client
from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.source.options import EARLIEST, LATEST, Bound, ReadOptions
from linn.wire.messages import TopicInfo

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """Offsets of one partition: `latest` is the end of its committed records."""

    topic: str
    topic_id: UUID
    partition: int
    earliest: int
    latest: int

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


def find_bounds(
    client: Client, options: ReadOptions, *, is_stream: bool = False, takes_missing: bool = False
) -> list[PartitionBounds]:
    """Return the bounds of all partitions that are read, by topic and partition.

    `takes_missing`: leave out topics and partitions that do not exist.

    Raises SparkOptionInvalid: a topic or partition does not exist, or a queue can't be read as a stream. NotLeader,
    PeerError: a topic has no leader that answers.
    """
    found = []
    for topic, partitions in _places(client, options, takes_missing):
        if is_stream and topic.kind == "queue":
            raise SparkOptionInvalid(
                f'the queue {topic.name} can\'t be read as a stream: make it kind = "both", or read it with spark.read'
            )
        topic_id = UUID(int=topic.id_high << 64 | topic.id_low)
        for partition in partitions:
            found.append(PartitionBounds(topic.name, topic_id, partition, *_ends(client, topic, partition)))
    return sorted(found, key=lambda bounds: bounds.place)


def _ends(client: Client, topic: TopicInfo, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition, and the end of its committed records."""
    earliest, end = topic.partitions[partition].start_offset, topic.partitions[partition].high_watermark
    if end == 0:  # A description has zeros as well where no leader could be asked.
        earliest = client.find_offset(topic.name, partition, "earliest")
    elif end <= earliest:
        return earliest, earliest
    return earliest, max(earliest, client.find_offset(topic.name, partition, "latest"))


def _places(client: Client, options: ReadOptions, takes_missing: bool) -> Iterator[tuple[TopicInfo, tuple[int, ...]]]:
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        for topic in client.describe().topics:
            if pattern.fullmatch(topic.name):
                yield topic, tuple(range(len(topic.partitions)))
        return
    assigned = options.assigned
    for topic in client.describe(*(options.topics if assigned is None else assigned)).topics:
        if not topic.kind and takes_missing:
            continue
        if not topic.kind:
            raise SparkOptionInvalid(f"the broker has no topic {topic.name}")
        count = len(topic.partitions)
        partitions = tuple(range(count)) if assigned is None else assigned[topic.name]
        if takes_missing:
            partitions = tuple(partition for partition in partitions if partition < count)
        elif any(partition >= count for partition in partitions):
            raise SparkOptionInvalid(f"assign names partition {max(partitions)} of {topic.name}, which has {count}")
        yield topic, partitions


def offsets_of(
    client: Client, bound: Bound, bounds: list[PartitionBounds], *, keeps_latest: bool = False
) -> dict[Place, int]:
    """Return the offsets that an option stands for; with `keeps_latest`, LATEST is returned as it is.

    Raises SparkOptionInvalid: it names partitions that are not read, or a time after the last record.
    """
    _check_named(bound, bounds)
    found = {}
    for partition in bounds:
        if (time_ms := bound.time_of(partition.place)) is not None:
            offset = _first_at(client, partition, time_ms)
            if offset is None and bound.is_strict:
                raise SparkOptionInvalid(
                    f"{bound.option}: partition {partition.partition} of {partition.topic} has no record "
                    f'from {time_ms} on; startingOffsetsByTimestampStrategy="latest" starts at its end'
                )
            offset = LATEST if offset is None else offset
        else:
            offset = bound.default if bound.offsets is None else bound.offsets[partition.topic][partition.partition]
        if offset == EARLIEST:
            offset = partition.earliest
        if offset == LATEST and not keeps_latest:
            offset = partition.latest
        found[partition.place] = offset
    return found


def _check_named(bound: Bound, bounds: list[PartitionBounds]) -> None:
    given = bound.named
    if given is None:
        return
    read = {partition.place for partition in bounds}
    for topic, partition in sorted(read - given):
        raise SparkOptionInvalid(f"{bound.option} has nothing for partition {partition} of {topic}")
    for topic, partition in sorted(given - read):
        raise SparkOptionInvalid(f"{bound.option} names partition {partition} of {topic}, which is not read")


def _first_at(client: Client, bounds: PartitionBounds, time_ms: int) -> int | None:
    """Return the offset of the first record with this time or a later one; None: no committed record has such a time.

    The broker finds the batch; the record in it is found here.
    """
    offset = client.find_offset(bounds.topic, bounds.partition, time_ms)
    while offset < bounds.latest:
        fetched = client.fetch(bounds.topic, bounds.partition, offset, bytes_max=1, topic_id=bounds.topic_id)
        for batch in fetched.batches:
            for message in batch:
                if message.offset >= offset and message.timestamp_ms >= time_ms:
                    return message.offset if message.offset < bounds.latest else None
        if fetched.next_offset <= offset:
            return None
        offset = fetched.next_offset
    return None
