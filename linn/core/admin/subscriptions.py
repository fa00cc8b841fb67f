"""The verbs about shared subscriptions: queues, and named subscriptions of streams.

Each verb raises LinnErrors.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from linn import verbs
from linn.core.admin.entry_store import EntryStore
from linn.core.admin.place import check_offset, place_of
from linn.core.env.log_fields import log_fields
from linn.core.errors.names import name_problem
from linn.core.errors.texts import counted
from linn.core.errors.tree import (
    ConfigError,
    LinnError,
    SharedBusy,
    StorageError,
    SubscriptionWrongKind,
    SyncFailed,
)
from linn.core.ports.principal import Principal
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.topics.catalog import Catalog
from linn.core.topics.shared_entry import SharedEntry, check_entries, free_number
from linn.core.topics.topic import Topic
from linn.descriptions import QueueConsumer, QueueDescription, QueueDetails, QueuePartition, RecordStates
from linn.rights import SEE, TOPIC

logger = logging.getLogger("linn.administration")

SETTLED_RANGES_MAX = 1_000
"""Limit of the ranges settled out of order shown per partition, to keep answers small."""


class SubscriptionAdministration:
    """Subscriptions, shown while the broker runs."""

    def __init__(self, catalog: Catalog, entries: EntryStore) -> None:
        self._catalog = catalog
        self._entries = entries

    async def list_all(self, asked: verbs.OfTopic, caller: Principal) -> list[QueueDescription]:
        """The numbers of unsettled and leased records in queues and named subscriptions: of one topic, or of all that
        the caller may see."""
        if asked.topic is not None:
            caller.access.check(SEE, TOPIC, asked.topic)
            chosen = [self._catalog.led_topic(asked.topic)]
        else:
            topics = self._catalog.topics
            chosen = [topics[name] for name in caller.access.visible(TOPIC, sorted(topics))]
        queues = [queue for topic in chosen for _, queue in sorted(topic.subscriptions.items())]
        return [await _subscription_summary(queue) for queue in queues]

    async def show(self, asked: verbs.OfSubscription) -> QueueDetails:
        """One queue or named subscription, also by partition and by consumer."""
        queue = queue_of(self._catalog.led_topic(asked.topic), asked.subscription)
        consumers: list[QueueConsumer] = [
            {
                "consumer": consumer.id,
                "name": consumer.name,
                "priority": consumer.priority,
                "active": queue.is_for(consumer),
                "leased": sum(it.subscription.leased_by(consumer.id) for it in queue.partition_queues),
                "decided": consumer.decided_count,
            }
            for consumer in queue.consumers.values()
        ]
        return {
            **await _subscription_summary(queue),
            "by_partition": [_partition_data(partition_queue) for partition_queue in queue.partition_queues],
            "by_consumer": consumers,
        }

    async def purge(self, asked: verbs.NamedChange) -> verbs.Purged:
        """Settle all records of a queue. Durable when this returns."""
        topic = self._catalog.led_topic(asked.name)
        if topic.queue is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a stream: only retention deletes its records")
        if asked.validate_only:
            return {"purged": 0}
        if topic.logs is not None:
            topic.logs.check_enough()
        partition_queues = topic.queue.partition_queues
        purged = sum(partition_queue.purge() for partition_queue in partition_queues)
        for partition_queue in partition_queues:
            await partition_queue.log.commit_all()
        return {"purged": purged}

    async def create(self, asked: verbs.NewSubscription) -> verbs.Created:
        """Create a named subscription unless it exists; it starts at the oldest record if no place is given."""
        topic = self._catalog.led_topic(asked.topic)
        if (asked.to, asked.offset, asked.timestamp_ms) == (None, None, None):
            asked.to = "earliest"
        if asked.offset is not None:
            check_offset(asked.offset, topic.partitions.values())
        starts = [await place_of(topic.partition(index), asked) for index in sorted(topic.partitions)]
        return {"created": await self.make(topic, asked.subscription, starts, is_tried=asked.validate_only)}

    async def make(self, topic: Topic, name: str, starts: Sequence[int], *, is_tried: bool = False) -> bool:
        """Create a named subscription that starts at these offsets, unless it exists; returns whether it is new.

        `is_tried`: only check the request. Raises SubscriptionWrongKind, ConfigError, LimitExceeded, StorageError.
        """
        if not topic.settings.keeps_settled:
            text = "named subscriptions are for streams, and for queues that keep settled records (keep)"
            raise SubscriptionWrongKind(f"topic {topic.name} is a queue: {text}")
        if (wrong := name_problem(name)) is not None:
            raise ConfigError(f'"{name[:80]}" can\'t be the name of a subscription: {wrong}')
        if name in topic.subscriptions:
            return False
        check_entries(topic.name, topic.settings, topic.entries, more=1)
        if name not in topic.entries:
            free_number(topic.name, topic.entries)
        if is_tried:
            return True
        if name in topic.entries:
            await self._finish_deleting(topic, name)
        for partition in topic.partitions.values():
            # Otherwise a power loss might take records before the start, and the subscription would miss the records
            # that replace them.
            await partition.make_durable()
        topic.entries[name] = SharedEntry(free_number(topic.name, topic.entries), tuple(starts))
        try:
            change = await topic.prepare(topic.settings, topic.semantics)
            try:
                await self._save(topic)
            except LinnError:
                await change.abandon()
                raise
        except LinnError:
            del topic.entries[name]
            raise
        await topic.switch(change)
        return True

    async def delete(self, asked: verbs.SubscriptionDeletion) -> verbs.Nothing:
        """Delete a named subscription and its settlements; the records stay."""
        topic, name = self._catalog.led_topic(asked.topic), asked.subscription
        if not name:
            raise ConfigError("the queue of a topic is deleted with its topic")
        queue = topic.shared(name) if name not in topic.entries else topic.subscriptions.get(name)
        if queue is not None and queue.consumers and not asked.force:
            consumers = counted(len(queue.consumers), "consumer")
            raise SharedBusy(f"the subscription {name} of topic {topic.name} has {consumers}")
        if asked.validate_only:
            return {}
        if queue is not None:
            entry = topic.entries[name]
            topic.entries[name] = replace(entry, deleted=True)
            try:
                await self._save(topic)
            except LinnError:
                topic.entries[name] = entry
                raise
        await self._finish_deleting(topic, name)
        return {}

    async def _finish_deleting(self, topic: Topic, name: str) -> None:
        """Delete the logs of a subscription. Raises StorageError: some are left, and its number stays in use."""
        await topic.drop_shared(name)
        entry = topic.entries.pop(name)
        try:
            await self._save(topic)
        except LinnError:
            topic.entries[name] = entry
            raise

    async def _save(self, topic: Topic) -> None:
        await self._entries.save_topic(topic, topic.settings, topic.live_bindings, topic.live_keys)

    async def finish_dropping(self, topic: Topic) -> None:
        """Delete at a start the logs of subscriptions whose deletion was interrupted, as far as possible.

        The caller saves the topic's entry. Raises SyncFailed.
        """
        for name in [name for name, entry in topic.entries.items() if entry.deleted]:
            try:
                await topic.drop_shared(name)
            except SyncFailed:
                raise
            except StorageError as error:
                about = {"topic": topic.name, "subscription": name} | log_fields(error)
                logger.warning("some of the subscription %(subscription)s of %(topic)s is left: %(error)s", about)
            else:
                del topic.entries[name]


def queue_of(topic: Topic, name: str) -> Queue:
    """The queue of a topic, "", or a named subscription. Raises SubscriptionWrongKind, SharedUnknown."""
    if topic.queue is None and not name:
        raise SubscriptionWrongKind(f"topic {topic.name} is a stream: name one of its shared subscriptions")
    return topic.shared(name)


async def _subscription_summary(queue: Queue) -> QueueDescription:
    await queue.find_oldest_ready()
    counts = [_counts(partition_queue) for partition_queue in queue.partition_queues]
    return {
        "topic": queue.topic,
        "subscription": queue.name,
        "unsettled": queue.unsettled_count(),
        "ready": sum(count["ready"] for count in counts),
        "returned": sum(count["returned"] for count in counts),
        "leased": sum(count["leased"] for count in counts),
        "decided": sum(count["decided"] for count in counts),
        "delayed": sum(count["delayed"] for count in counts),
        "dead": sum(count["dead"] for count in counts),
        "damaged": sum(partition_queue.damage.ranges.count for partition_queue in queue.partition_queues),
        "oldest_ready_s": queue.oldest_ready_s(queue.partition_queues[0].clock.now_ms()),
        "missed": sum(partition_queue.missed_records for partition_queue in queue.partition_queues),
        "expired": sum(partition_queue.expired_records for partition_queue in queue.partition_queues),
        "consumers": len(queue.consumers),
    }


def _counts(partition_queue: PartitionQueue) -> RecordStates:
    statistics = partition_queue.subscription.statistics()
    return {
        "ready": partition_queue.subscription.ready_count(partition_queue.partition.stable_offset),
        "returned": statistics.ready + statistics.delayed,
        "leased": statistics.leased,
        "decided": statistics.decided,
        "delayed": statistics.delayed,
        "dead": statistics.dead,
    }


def _partition_data(partition_queue: PartitionQueue) -> QueuePartition:
    subscription, partition = partition_queue.subscription, partition_queue.partition
    return {
        "partition": partition.id.index,
        **_counts(partition_queue),
        "settled_before": subscription.settled_before(),
        "end": partition.stable_offset,
        "settled": [list(settled) for settled in subscription.settled[:SETTLED_RANGES_MAX]],
        "damaged": [list(damaged) for damaged in partition_queue.damage.ranges],
    }
