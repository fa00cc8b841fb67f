"""The verbs about readers: consumer groups of streams, and the shared subscriptions of queues.

`Administration` calls them: those that change something one at a time, the others at any time. Each takes a JSON
object, returns a JSON value and raises LinnErrors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linn.core.admin.administered import Administered
from linn.core.admin.verb import only_validates
from linn.core.config.topic_settings import PARTITIONS_MAX
from linn.core.errors.tree import ConfigError, LimitExceeded, SubscriptionWrongKind
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.partition import Partition
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.topics.topic import Topic

Arguments = Mapping[str, Any]

SETTLED_RANGES_MAX = 1_000
"""Limit of the ranges settled out of order that are shown per partition, so that an answer stays small."""
_COUNTS = ("ready", "returned", "leased", "delayed", "dead")


class SubscriptionAdministration:
    """Groups and subscriptions, shown and changed while the broker runs."""

    def __init__(self, broker: Administered) -> None:
        self._broker = broker

    # --- groups ---

    async def list_groups(self, arguments: Arguments) -> Any:
        """The groups of one topic, or of all."""
        topics = self._broker.topics
        chosen = [self._topic(arguments)] if "topic" in arguments else [topics[name] for name in sorted(topics)]
        groups = self._broker.groups
        names = sorted(groups.groups)
        return [
            self._group_summary(topic, name)
            for topic in chosen
            if topic.stream is not None
            for name in names
            if topic.name in groups.known(name).topics
        ]

    def _group_summary(self, topic: Topic, name: str) -> dict[str, Any]:
        groups = self._broker.groups
        offsets = groups.show(name, topic.name, topic.partitions)
        return {
            "topic": topic.name,
            "group": name,
            "members": groups.members(name, topic.name),
            "epoch": groups.known(name).epoch,
            "lag": sum(_lag(topic.partitions[index], offset) for index, offset in offsets.items()),
        }

    async def show_group(self, arguments: Arguments) -> Any:
        """The group's position in each partition, and the members that read it."""
        topic, groups, name = self._group(arguments)
        return self._positions(topic, name, groups.show(name, topic.name, topic.partitions))

    def _positions(self, topic: Topic, name: str, offsets: Mapping[int, int | None]) -> list[dict[str, Any]]:
        group = self._broker.groups.known(name)
        return [
            {
                "partition": index,
                "offset": offset,
                "lag": _lag(topic.partitions[index], offset),
                "start": topic.partitions[index].start_offset,
                "end": topic.partitions[index].stable_offset,
                "member": group.membership.owner((topic.name, index)),
            }
            for index, offset in offsets.items()
        ]

    async def reset_group(self, arguments: Arguments) -> Any:
        """Move a group's positions; the answer is that of `show_group`, also if the change is only validated."""
        topic, groups, name = self._group(arguments)
        chosen = arguments.get("partitions", list(topic.partitions))
        if not isinstance(chosen, list) or not all(type(index) is int for index in chosen):
            raise ConfigError('the argument "partitions" must be a list of numbers')
        if len(chosen) > PARTITIONS_MAX:
            raise LimitExceeded(f"{len(chosen)} partitions, more than the {PARTITIONS_MAX} that a topic may have")
        offsets = {index: await _place(topic.partition(index), arguments) for index in dict.fromkeys(chosen)}
        if only_validates(arguments):
            groups.known(name).check_idle(topic.name)
            return self._positions(topic, name, groups.show(name, topic.name, topic.partitions) | offsets)
        await groups.reset(name, topic.name, offsets)
        return await self.show_group(arguments)

    async def delete_group(self, arguments: Arguments) -> Any:
        """Delete a group's offsets in a topic, and the group with its last ones."""
        topic, groups, name = self._group(arguments)
        if only_validates(arguments):
            groups.known(name).check_idle(topic.name)
        else:
            await groups.forget(name, topic.name)
        return {}

    def _group(self, arguments: Arguments) -> tuple[Topic, GroupCoordinator, str]:
        topic, name = self._topic(arguments), arguments.get("group")
        if topic.stream is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a queue and has no groups")
        if not isinstance(name, str):
            raise ConfigError('the argument "group" is missing, or not text')
        return topic, self._broker.groups, name

    # --- queues ---

    async def list_subscriptions(self, arguments: Arguments) -> Any:
        """The unsettled and the leased records of all queues."""
        topics = self._broker.topics
        queues = [(name, topics[name].queue) for name in sorted(topics)]
        return [_subscription_summary(name, queue) for name, queue in queues if queue is not None]

    async def show_subscription(self, arguments: Arguments) -> Any:
        """One queue: the same, also by partition and by consumer."""
        topic = self._topic(arguments)
        queue = topic.queue
        if queue is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a stream: it is read by groups")
        consumers = [
            {"consumer": consumer.id, "leased": sum(d.subscription.leased_by(consumer.id) for d in queue.dispatches)}
            for consumer in queue.consumers.values()
        ]
        return _subscription_summary(topic.name, queue) | {
            "by_partition": [_partition_data(dispatch) for dispatch in queue.dispatches],
            "by_consumer": consumers,
        }

    def _topic(self, arguments: Arguments) -> Topic:
        name = arguments.get("topic")
        if not isinstance(name, str):
            raise ConfigError('the argument "topic" is missing, or not text')
        return self._broker.topic(name)


def _lag(partition: Partition, offset: int | None) -> int:
    return partition.stable_offset - max(offset or 0, partition.start_offset)


async def _place(partition: Partition, arguments: Arguments) -> int:
    """The offset that `to`, `offset` or `timestamp_ms` names, moved to where there are records. Raises ConfigError."""
    start, end = partition.start_offset, partition.stable_offset
    named = [(name, arguments[name]) for name in ("to", "offset", "timestamp_ms") if name in arguments]
    if named == [("to", "earliest")]:
        return start
    if named == [("to", "latest")]:
        return end
    if len(named) == 1 and type(named[0][1]) is int:
        value: int = named[0][1]
        if named[0][0] == "offset":
            return max(start, min(value, end))
        if named[0][0] == "timestamp_ms":
            return min(await partition.log.offset_at(value), end)
    raise ConfigError('a reset takes exactly one of: to ("earliest" or "latest"), offset, timestamp_ms')


def _subscription_summary(topic: str, queue: Queue) -> dict[str, Any]:
    counts = [_counts(dispatch) for dispatch in queue.dispatches]
    return {
        "topic": topic,
        "unsettled": queue.unsettled_count(),
        **{name: sum(count[name] for count in counts) for name in _COUNTS},
        "damaged": sum(dispatch.damaged.count for dispatch in queue.dispatches),
        "consumers": len(queue.consumers),
    }


def _counts(dispatch: PartitionQueue) -> dict[str, int]:
    statistics = dispatch.subscription.statistics()
    return {
        "ready": dispatch.subscription.ready_count(dispatch.partition.stable_offset),
        "returned": statistics.ready + statistics.delayed,
        "leased": statistics.leased,
        "delayed": statistics.delayed,
        "dead": statistics.dead,
    }


def _partition_data(dispatch: PartitionQueue) -> dict[str, Any]:
    subscription, partition = dispatch.subscription, dispatch.partition
    return {
        "partition": partition.id.index,
        **_counts(dispatch),
        "settled_before": subscription.settled_before(),
        "end": partition.stable_offset,
        "settled": [list(settled) for settled in subscription.settled[:SETTLED_RANGES_MAX]],
        "damaged": [list(damaged) for damaged in dispatch.damaged],
    }
