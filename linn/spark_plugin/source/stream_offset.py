"""StreamOffset: the position of a streaming query in each partition. Spark keeps it as JSON in its checkpoint.

Laws: it carries each topic's id, so that a topic that was deleted and made again is not mistaken for the old one. Equal
offsets have equal JSON text, as Spark compares the text. A start at the end of the log stays LATEST, and the first
micro-batch is empty there: reading begins at its end, which Spark logs before it reads. So nothing else has to store
the start, and a replay of that micro-batch gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any
from uuid import UUID

from linn.spark_plugin.errors import SparkDataLost
from linn.spark_plugin.source.bounds import PartitionBounds, Place
from linn.spark_plugin.source.options import LATEST
from linn.spark_plugin.source.ranges import OffsetRange


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset behind the last record that was read, by topic and partition."""

    ids: Mapping[str, UUID]
    offsets: Mapping[Place, int]

    @classmethod
    def of(cls, bounds: Iterable[PartitionBounds], offsets: Mapping[Place, int]) -> StreamOffset:
        """Make a StreamOffset for the partitions of `bounds`."""
        known = list(bounds)
        topic_ids = {partition.topic: partition.topic_id for partition in known}
        return cls(topic_ids, {partition.place: offsets[partition.place] for partition in known})

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamOffset:
        """Parse the JSON of `to_json`. Raises SparkDataLost: it is of another source."""
        try:
            ids = {topic: UUID(entry["id"]) for topic, entry in found.items()}
            offsets = {
                (topic, int(partition)): int(offset)
                for topic, entry in found.items()
                for partition, offset in entry["offsets"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SparkDataLost(f"the checkpoint is none of linn's Spark source: it has {str(found)[:80]}") from error
        return cls(ids, offsets)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, with topics and partitions in order."""
        found: dict[str, Any] = {topic: {"id": str(self.ids[topic]), "offsets": {}} for topic in sorted(self.ids)}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found[topic]["offsets"][str(partition)] = offset
        return found

    def offset_in(self, bounds: PartitionBounds) -> int | None:
        """Return the offset in a partition of the topic with the same id; None if it is not known yet."""
        return self.offsets.get(bounds.place) if self.ids.get(bounds.topic) == bounds.topic_id else None


def next_end(
    start: StreamOffset, bounds: Sequence[PartitionBounds], offsets_max: int | None, fails_on_data_loss: bool
) -> StreamOffset:
    """Return the end of the micro-batch after `start`, of at most `offsets_max` offsets.

    New partitions begin at their earliest offset. Raises SparkDataLost if a partition is gone, or ends before `start`.
    """
    if fails_on_data_loss:
        _check_nothing_lost(start, bounds)
    pending = {partition: _pending(start, partition) for partition in bounds}
    total = sum(len(part) for part in pending.values())
    ends = {}
    for partition, part in pending.items():
        size = len(part)
        if offsets_max is not None and total > offsets_max:
            share = offsets_max * size / total
            # Shares below one are rounded up, so that small partitions have their turn, as in Spark's Kafka source.
            size = min(size, ceil(share) if share < 1 else floor(share))
        ends[partition.place] = part.start + size
    return StreamOffset.of(bounds, ends)


def pending_records(start: StreamOffset, bounds: Sequence[PartitionBounds]) -> int:
    """Return the number of offsets after `start`."""
    return sum(len(_pending(start, partition)) for partition in bounds)


def _pending(start: StreamOffset, bounds: PartitionBounds) -> range:
    """Return the number of unread offsets, by partition."""
    known = start.offset_in(bounds)
    if known == LATEST:
        return range(bounds.latest, bounds.latest)
    first = bounds.earliest if known is None else known
    return range(min(first, bounds.latest), bounds.latest)


def _check_nothing_lost(start: StreamOffset, bounds: Sequence[PartitionBounds]) -> None:
    there = {partition.place: partition for partition in bounds}
    for (topic, partition), offset in start.offsets.items():
        found = there.get((topic, partition))
        if found is None:
            raise _lost(f"partition {partition} of {topic} is gone")
        if found.topic_id != start.ids[topic]:
            raise _lost(f"topic {topic} was deleted and made again since")
        if offset > found.latest:
            raise _lost(f"partition {partition} of {topic} ends at offset {found.latest}, before {offset}")


def ranges_between(
    start: StreamOffset, end: StreamOffset, bounds: Sequence[PartitionBounds], fails_on_data_loss: bool
) -> list[OffsetRange]:
    """Return the ranges of a micro-batch by partition, as Spark has logged them.

    Raises SparkDataLost: records are no longer within `bounds`.
    """
    there = {(partition.topic, partition.topic_id, partition.partition): partition for partition in bounds}
    found = []
    for (topic, partition), last in sorted(end.offsets.items()):
        topic_id = end.ids[topic]
        now = there.get((topic, topic_id, partition))
        first = start.offsets.get((topic, partition)) if start.ids.get(topic) == topic_id else None
        if first == LATEST:
            continue
        if first is None:
            # The partition was new then, and its log began with it.
            first = now.earliest if now is not None else 0
        if now is None:
            if fails_on_data_loss and first < last:
                raise _lost(f"offsets {first} to {last} of partition {partition} of {topic} are gone with the topic")
            continue
        if first < now.earliest:
            if fails_on_data_loss and first < last:
                raise _lost(f"offsets {first} to {now.earliest} of partition {partition} of {topic} are gone")
            first = now.earliest
        if first < last:
            found.append(OffsetRange(topic, topic_id, partition, first, last))
    return found


def _lost(what: str) -> SparkDataLost:
    return SparkDataLost(f"{what}; failOnDataLoss=false passes over what is lost")
