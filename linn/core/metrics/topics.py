"""The metrics of topics, their queues and consumer groups, and of the storage under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from linn.core.log.partition import Partition
from linn.core.metrics.metric import Metric, MetricKind, Sample
from linn.core.metrics.source import MetricSource
from linn.core.queue.decided import deliveries_count, oldest_decision_ms
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.queue.transfer import DROP_REASONS
from linn.core.topics.topic import Topic


def _topic(name: str, kind: MetricKind, help: str, value: Callable[[Topic], int]) -> Metric:
    def read(broker: MetricSource) -> list[Sample]:
        return [((topic.name,), value(topic)) for topic in broker.topics.values()]

    return Metric(name, kind, ("topic",), help, read)


def _partitions(name: str, kind: MetricKind, help: str, value: Callable[[Partition], int]) -> Metric:
    """Make a metric that sums over a topic's partitions."""
    return _topic(name, kind, help, lambda topic: sum(map(value, topic.partitions.values())))


def _queue(name: str, kind: MetricKind, help: str, value: Callable[[Queue], int]) -> Metric:
    """Make a metric of queues, with the label `subscription` "", and of named subscriptions."""

    def read(broker: MetricSource) -> list[Sample]:
        queues = [queue for topic in broker.topics.values() for queue in topic.subscriptions.values()]
        return [((queue.topic, queue.name), value(queue)) for queue in queues]

    return Metric(name, kind, ("topic", "subscription"), help, read)


def _of_partition_queues(name: str, kind: MetricKind, help: str, value: Callable[[PartitionQueue], int]) -> Metric:
    """Make a metric that sums over the partitions of a queue or named subscription."""
    return _queue(name, kind, help, lambda queue: sum(map(value, queue.partition_queues)))


def _consumers(broker: MetricSource) -> Iterable[Sample]:
    """The number of readers: competing consumers, members of groups, and readers without a group."""
    members = Counter(
        topic
        for group in broker.groups.groups.values()
        for member in group.membership.members.values()
        for topic in member.seats
    )
    for topic in broker.topics.values():
        competing = sum(len(queue.consumers) for queue in topic.subscriptions.values())
        yield (topic.name,), len(topic.readers) + competing + members[topic.name]


def _dropped_dead_letters(broker: MetricSource) -> Iterator[Sample]:
    for queue in [queue for topic in broker.topics.values() for queue in topic.subscriptions.values()]:
        dropped = Counter[str]()
        for partition_queue in queue.partition_queues:
            dropped.update(partition_queue.dead_letters.dropped)
        for reason in DROP_REASONS:
            yield (queue.topic, queue.name, reason), dropped[reason]


def _ready(partition_queue: PartitionQueue) -> int:
    return partition_queue.subscription.ready_count(partition_queue.partition.stable_offset)


def _window_bytes(partition_queue: PartitionQueue) -> int:
    return partition_queue.ordered.size_bytes if partition_queue.ordered is not None else 0


def _pinned(partition_queue: PartitionQueue) -> int:
    return partition_queue.subscription.pinned_count if partition_queue.trimming.trims else 0


def _decision_ages(broker: MetricSource) -> Iterable[Sample]:
    now_ms = broker.env.clock.now_ms()
    for topic in broker.topics.values():
        for queue in topic.subscriptions.values():
            oldest_ms = oldest_decision_ms(queue)
            yield (queue.topic, queue.name), 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000


async def _find_oldest_ready(broker: MetricSource) -> None:
    for topic in list(broker.topics.values()):
        for queue in list(topic.subscriptions.values()):
            await queue.find_oldest_ready()


def _ready_ages(broker: MetricSource) -> Iterable[Sample]:
    now_ms = broker.env.clock.now_ms()
    for topic in broker.topics.values():
        for queue in topic.subscriptions.values():
            yield (queue.topic, queue.name), queue.oldest_ready_s(now_ms)


def _groups(broker: MetricSource) -> Iterator[tuple[Topic, str]]:
    topics = {name: topic for name, topic in broker.topics.items() if topic.stream is not None}
    for name, group in broker.groups.groups.items():
        yield from ((topics[topic], name) for topic in sorted(group.topics & topics.keys()))


def _members(broker: MetricSource) -> Iterable[Sample]:
    for topic, group in _groups(broker):
        yield (topic.name, group), broker.groups.members(group, topic.name)


def _lag(broker: MetricSource) -> Iterable[Sample]:
    for topic, group in _groups(broker):
        offsets = broker.groups.show(group, topic.name, topic.partitions)
        counts = [topic.partitions[index].readable_count(offset or 0) for index, offset in offsets.items()]
        yield (topic.name, group), sum(counts)


def _logs(topic: Topic) -> Iterator[Partition]:
    """All logs of a topic, including internal ones."""
    yield from topic.partitions.values()
    yield from topic.timing.partitions()
    yield from (state.partition for state in topic.state_logs())


def _by_storage(place: int) -> Callable[[MetricSource], Iterable[Sample]]:
    """Make a reader of one number of `LogStatistics`, summed over the logs of each storage with such statistics."""

    def read(broker: MetricSource) -> Iterable[Sample]:
        totals: dict[str, int] = {}
        logs = [(topic.storage.name, log) for topic in broker.topics.values() for log in _logs(topic)]
        for storage, log in logs:
            statistics = log.log_statistics()
            if statistics is not None:
                totals[storage] = totals.get(storage, 0) + statistics[place]
        return [((storage,), total) for storage, total in totals.items()]

    return read


TOPIC_METRICS: tuple[Metric, ...] = (
    _partitions(
        "linn_topic_published_batches_total",
        "counter",
        "Batches stored in the topic, copied dead letters and markers of transactions included.",
        lambda partition: partition.appended_batches,
    ),
    _partitions(
        "linn_topic_published_records_total",
        "counter",
        "Records stored in the topic, copied dead letters and those of aborted transactions included.",
        lambda partition: partition.appended_records,
    ),
    _partitions(
        "linn_topic_published_bytes_total",
        "counter",
        "Bytes of the batches stored in the topic.",
        lambda partition: partition.appended_bytes,
    ),
    _topic(
        "linn_topic_publish_errors_total",
        "counter",
        "Publish requests to the topic that failed, also for some of their records only. Those to an exchange are in "
        "linn_publish_errors_total only.",
        lambda topic: topic.publish_errors,
    ),
    _topic(
        "linn_topic_scheduled_records",
        "gauge",
        "Delayed records that are not in the topic yet.",
        lambda topic: topic.timing.waiting_count,
    ),
    _partitions(
        "linn_topic_producers",
        "gauge",
        "Idempotent producers that the partitions remember; one counts in each partition that it has published to.",
        lambda partition: len(partition.log.facts.producers),
    ),
    _partitions(
        "linn_topic_duplicate_batches_total",
        "counter",
        "Batches that a producer sent again and that were not stored twice.",
        lambda partition: partition.duplicates,
    ),
    _partitions(
        "linn_topic_delivered_batches_total",
        "counter",
        "Batches, or parts of them, handed to consumers and fetches.",
        lambda partition: partition.delivered_batches,
    ),
    _partitions(
        "linn_topic_delivered_records_total",
        "counter",
        "Records handed to consumers and fetches. One that goes to three consumers counts three times.",
        lambda partition: partition.delivered_records,
    ),
    _partitions(
        "linn_topic_delivered_bytes_total",
        "counter",
        "Bytes of the batches handed to consumers and fetches.",
        lambda partition: partition.delivered_bytes,
    ),
    _topic(
        "linn_topic_dropped_records_total",
        "counter",
        'Records that `overflow = "drop-head"` removed to make room; of a queue only those that were not settled.',
        lambda topic: topic.room.dropped_records,
    ),
    _topic(
        "linn_topic_overflow_dead_letters_total",
        "counter",
        'Records that `overflow = "dead-letter"` made dead letters to make room.',
        lambda topic: topic.room.dead_records,
    ),
    _partitions(
        "linn_topic_records",
        "gauge",
        "Records that can be read. Those of aborted transactions, and those behind an open one, can't.",
        lambda partition: partition.readable_count(),
    ),
    _partitions(
        "linn_topic_bytes",
        "gauge",
        "Bytes of the stored batches.",
        lambda partition: partition.log.size_bytes(),
    ),
    Metric("linn_topic_consumers", "gauge", ("topic",), "Consumers, members of groups and readers.", _consumers),
    _of_partition_queues(
        "linn_queue_ready_records",
        "gauge",
        "Records of the queue that a consumer would get now.",
        _ready,
    ),
    Metric(
        "linn_queue_oldest_ready_seconds",
        "gauge",
        ("topic", "subscription"),
        "Age of the oldest record that a consumer would get now, since it was stored; 0 where there is none.",
        _ready_ages,
        measure=_find_oldest_ready,
    ),
    _of_partition_queues(
        "linn_queue_order_window_bytes",
        "gauge",
        "Memory of the index of ready records of the topic's order, 20 bytes each; 0 without an order.",
        _window_bytes,
    ),
    _of_partition_queues(
        "linn_queue_leased_records",
        "gauge",
        "Records that are leased to a consumer.",
        lambda partition_queue: partition_queue.subscription.leased_count,
    ),
    _of_partition_queues(
        "linn_queue_decided_records",
        "gauge",
        "Records that were decided to a consumer and are not done.",
        lambda partition_queue: partition_queue.subscription.decided_count,
    ),
    _of_partition_queues(
        "linn_queue_decided_deliveries",
        "gauge",
        "Deliveries with records that were decided to a consumer and are not done.",
        lambda partition_queue: deliveries_count(partition_queue.subscription),
    ),
    Metric(
        "linn_queue_oldest_decision_seconds",
        "gauge",
        ("topic", "subscription"),
        "Age of the oldest decision that is not done; 0 where there is none. A decision lasts until its consumer is "
        "back, or an operator ends it.",
        _decision_ages,
    ),
    _of_partition_queues(
        "linn_queue_pinned_records",
        "gauge",
        "Settled records of a queue that can't be deleted, because one before them was decided and is not done. 0 for "
        "named subscriptions, which keep no records.",
        _pinned,
    ),
    _of_partition_queues(
        "linn_queue_delayed_records",
        "gauge",
        "Returned records whose delay has not passed.",
        lambda partition_queue: partition_queue.subscription.delayed_count,
    ),
    _of_partition_queues(
        "linn_queue_damaged_records",
        "gauge",
        "Records that can't be read from the disk; they count as delayed, and are retried every five minutes.",
        lambda partition_queue: partition_queue.damage.ranges.count,
    ),
    _of_partition_queues(
        "linn_queue_dead_records",
        "gauge",
        "Dead records: rejected or out of attempts, and not yet copied to the dead-letter topic.",
        lambda partition_queue: partition_queue.subscription.dead_count,
    ),
    _queue(
        "linn_queue_unsettled_records",
        "gauge",
        "Records that are not settled: ready, leased, decided, delayed and dead together.",
        Queue.unsettled_count,
    ),
    _queue(
        "linn_queue_decisions_total",
        "counter",
        "Decisions: deliveries, or parts of them, that a consumer was ready for and the broker decided to it.",
        lambda queue: queue.decisions,
    ),
    _queue(
        "linn_queue_operator_resolutions_total",
        "counter",
        "Decided ranges of records that an operator has ended with `linn deliveries resolve`.",
        lambda queue: queue.resolutions,
    ),
    _queue(
        "linn_queue_lost_consumers_total",
        "counter",
        "Consumers that were lost: they had been given records, and ended otherwise than by unsubscribing.",
        lambda queue: queue.lost_consumers,
    ),
    _of_partition_queues(
        "linn_queue_redelivered_records_total",
        "counter",
        "Records delivered for the second time or later.",
        lambda partition_queue: partition_queue.redelivered_records,
    ),
    _of_partition_queues(
        "linn_queue_dead_letters_total",
        "counter",
        "Records that became dead letters: rejected, or out of attempts.",
        lambda partition_queue: partition_queue.dead_letters.count,
    ),
    Metric(
        "linn_queue_dead_letters_dropped_total",
        "counter",
        ("topic", "subscription", "reason"),
        "Dead letters that reached no target: unreadable, too_large, refused, unroutable, or going in a cycle.",
        _dropped_dead_letters,
    ),
    _of_partition_queues(
        "linn_queue_dead_letter_retries",
        "gauge",
        "Tries in vain to copy the dead letters that are next, since one succeeded: their target is full or missing.",
        lambda partition_queue: partition_queue.dead_letters.retries,
    ),
    _of_partition_queues(
        "linn_queue_missed_records_total",
        "counter",
        "Records that retention or overflow removed before they were settled.",
        lambda partition_queue: partition_queue.missed_records,
    ),
    _of_partition_queues(
        "linn_queue_expired_records_total",
        "counter",
        "Records whose TTL was over before a consumer took them. They are dead letters, too.",
        lambda partition_queue: partition_queue.expired_records,
    ),
    Metric(
        "linn_group_lag_records",
        "gauge",
        ("topic", "group"),
        "Records that the group gets after its committed offsets, over all partitions.",
        _lag,
    ),
    Metric("linn_group_members", "gauge", ("topic", "group"), "Members of the group that are connected.", _members),
    Metric(
        "linn_storage_appends_total",
        "counter",
        ("storage",),
        "Batches appended to logs, those of internal logs included.",
        lambda broker: [((storage.name,), storage.appends) for storage in broker.measurements.storages.values()],
    ),
    Metric(
        "linn_storage_sync_seconds",
        "histogram",
        ("storage",),
        "Duration of syncs that confirm publishes or that the flusher made.",
        lambda broker: [((storage.name,), storage.sync_seconds) for storage in broker.measurements.storages.values()],
    ),
    Metric(
        "linn_storage_segments",
        "gauge",
        ("storage",),
        "Segments of all logs. Only of an engine that has segments.",
        _by_storage(0),
    ),
    Metric(
        "linn_storage_cut_bytes",
        "gauge",
        ("storage",),
        "Bytes of torn tails that were cut off when the logs were opened, after a power loss.",
        _by_storage(1),
    ),
)
