"""The metrics of transactions, and of the readers that an open one holds back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from linn.core.log.partition import Partition
from linn.core.metrics.metric import Metric, Sample
from linn.core.metrics.source import MetricSource


def _oldest_s(broker: MetricSource) -> float:
    """The age of the oldest open transaction; 0 if there is none."""
    opened = broker.transactions.open_now()
    return broker.env.clock.monotonic() - opened[0].began_s if opened else 0.0


def _held(broker: MetricSource) -> Iterator[Partition]:
    """The partitions with an open transaction. The search skips the others, of which there may be thousands."""
    for storage in broker.measurements.storages.values():
        for id in storage.held:
            topic = broker.topics.get(id.topic)
            partition = topic.partitions.get(id.index) if topic is not None else None
            if partition is not None and partition.open_transactions():
                yield partition


def _unreadable(broker: MetricSource) -> Iterable[Sample]:
    records = dict.fromkeys(broker.topics, 0)
    for partition in _held(broker):
        records[partition.id.topic] += partition.high_watermark - partition.stable_offset
    return [((topic,), count) for topic, count in records.items()]


def _held_s(broker: MetricSource) -> Iterable[Sample]:
    """The age of the oldest transaction at a stable offset, by topic; since the start, if it goes on from before."""
    ages, now_s = dict.fromkeys(broker.topics, 0.0), broker.env.clock.monotonic()
    for partition in _held(broker):
        opened_s = broker.transactions.opened_s(next(iter(partition.open_transactions())))
        topic, since_s = partition.id.topic, broker.measurements.started_at if opened_s is None else opened_s
        ages[topic] = max(ages[topic], now_s - since_s)
    return [((topic,), age_s) for topic, age_s in ages.items()]


TRANSACTION_METRICS: tuple[Metric, ...] = (
    Metric(
        "linn_transactions_open",
        "gauge",
        (),
        "Transactions that are open. One whose commit waits for the disk is open until it is decided.",
        lambda broker: [((), len(broker.transactions.open_now()))],
    ),
    Metric(
        "linn_transactions_oldest_seconds",
        "gauge",
        (),
        "Age of the oldest open transaction; 0 if none is open. Its timeout ends it.",
        lambda broker: [((), _oldest_s(broker))],
    ),
    Metric(
        "linn_transactions_committed_total",
        "counter",
        (),
        "Transactions that were committed.",
        lambda broker: [((), broker.transactions.committed)],
    ),
    Metric(
        "linn_transactions_aborted_total",
        "counter",
        ("reason",),
        "Transactions that were aborted: `asked` by their client; after their `timeout`; `fenced`, as another client "
        "took over the name; or by an `operator`.",
        lambda broker: [((reason.value,), count) for reason, count in broker.transactions.aborted.items()],
    ),
    Metric(
        "linn_topic_unreadable_records",
        "gauge",
        ("topic",),
        "Records that are stored, and can't be read before a transaction in front of them has ended.",
        _unreadable,
    ),
    Metric(
        "linn_topic_unreadable_seconds",
        "gauge",
        ("topic",),
        "Age of the oldest transaction that readers of the topic wait for; 0 if they wait for none.",
        _held_s,
    ),
)
