"""View of `linn top`: numbers per topic, group and connection, computed from two readings of a broker's metrics.

Law: a rate is the difference of two readings of one broker; where a counter went back, because the broker was restarted
or a topic was created anew, there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NAMES = (
    "linn_broker_info",
    "linn_broker_uptime_seconds",
    "linn_loop_lag_seconds",
    "linn_process_memory_bytes",
    "linn_process_descriptors",
    "linn_publish_errors_total",
    "linn_listener_connections",
    "linn_transactions_open",
    "linn_connection_",
    "linn_topic_published_records_total",
    "linn_topic_published_bytes_total",
    "linn_topic_delivered_records_total",
    "linn_topic_delivered_bytes_total",
    "linn_topic_records",
    "linn_topic_bytes",
    "linn_topic_consumers",
    "linn_queue_ready_records",
    "linn_queue_leased_records",
    "linn_queue_decided_records",
    "linn_queue_unsettled_records",
    "linn_queue_redelivered_records_total",
    "linn_queue_dead_letters_total",
    "linn_group_",
    "linn_spark_pipeline_",
)
"""Prefixes of the metrics that are requested; no more than are shown, as there may be many topics."""

Labels = tuple[str, ...]
Values = Mapping[Labels, Any]


class Reading:
    """Metrics of one moment, by name and labels."""

    def __init__(self, taken_s: float, report: Iterable[Mapping[str, Any]]) -> None:
        """`report`: answer of `metrics.show`. `taken_s`: time of the reading on a monotonic clock."""
        self.taken_s = taken_s
        self._metrics: dict[str, Values] = {
            metric["name"]: {tuple(labels): value for labels, value in metric["samples"]} for metric in report
        }

    def of(self, name: str) -> Values:
        """Return all samples of a metric; empty where the broker does not have it."""
        return self._metrics.get(name, {})

    def one(self, name: str, labels: Labels = ()) -> Any:
        """Return one sample, or 0."""
        return self.of(name).get(labels, 0)


@dataclass(frozen=True)
class BrokerView:
    """Broker as a whole."""

    name: str
    version: str
    uptime_s: float
    memory_bytes: int
    descriptors: int
    descriptors_max: int
    connections: int
    open_transactions: int
    loop_lag_ms: float | None
    """Mean since the previous reading."""
    publish_errors_per_s: float | None


@dataclass(frozen=True)
class TopicView:
    """Topic; fields of queues are None for a stream."""

    topic: str
    in_records_per_s: float | None
    in_bytes_per_s: float | None
    out_records_per_s: float | None
    out_bytes_per_s: float | None
    records: int
    bytes: int
    consumers: int
    ready: int | None
    leased: int | None
    decided: int | None
    unsettled: int | None
    redelivered_per_s: float | None
    dead_letters: int | None


@dataclass(frozen=True)
class GroupView:
    """Consumer group."""

    topic: str
    group: str
    members: int
    lag: int


@dataclass(frozen=True)
class PipelineView:
    """Spark pipeline."""

    pipeline: str
    state: str
    rows_per_s: float | None
    rows: int
    lag: int | None
    batch_s: float | None
    restarts: int


@dataclass(frozen=True)
class ConnectionView:
    """Connection."""

    connection: int
    peer: str
    listener: str
    protocol: str
    in_bytes_per_s: float | None
    out_bytes_per_s: float | None
    inflight_requests: int
    unsent_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class View:
    """Complete view, the busiest topics and connections and the pipelines in trouble first."""

    broker: BrokerView
    topics: Sequence[TopicView] = field(default_factory=list)
    groups: Sequence[GroupView] = field(default_factory=list)
    pipelines: Sequence[PipelineView] = field(default_factory=list)
    connections: Sequence[ConnectionView] = field(default_factory=list)
    trouble: str | None = None
    """Reason why the view is not updated, while the broker is away."""

    def data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return asdict(self)


def view_of(now: Reading, before: Reading | None) -> View:
    """Compute the view of a reading; without an earlier one there are no rates."""
    rates = _Rates(now, before)
    topics = [_topic(now, rates, name) for (name,) in now.of("linn_topic_records")]
    groups = [
        GroupView(topic, group, now.one("linn_group_members", (topic, group)), lag)
        for (topic, group), lag in now.of("linn_group_lag_records").items()
    ]
    states = {name: state for (name, state), is_in in now.of("linn_spark_pipeline_state").items() if is_in}
    pipelines = [_pipeline(now, rates, name, state) for name, state in states.items()]
    connections = [_connection(now, rates, labels) for labels in now.of("linn_connection_received_bytes_total")]
    return View(
        _broker(now, rates),
        sorted(topics, key=lambda t: (-(t.in_records_per_s or 0) - (t.out_records_per_s or 0), t.topic)),
        sorted(groups, key=lambda g: (-g.lag, g.topic, g.group)),
        sorted(pipelines, key=lambda p: (p.state == "running", -(p.lag or 0), p.pipeline)),
        sorted(connections, key=lambda c: (-(c.in_bytes_per_s or 0) - (c.out_bytes_per_s or 0), c.connection)),
    )


class _Rates:
    """Rates between two readings."""

    def __init__(self, now: Reading, before: Reading | None) -> None:
        self._now = now
        self._before = before
        self._seconds = now.taken_s - before.taken_s if before is not None else 0.0

    def of(self, name: str, labels: Labels) -> float | None:
        """Return the growth per second of a counter."""
        if self._before is None or self._seconds <= 0 or labels not in self._before.of(name):
            return None
        grown = self._now.one(name, labels) - self._before.one(name, labels)
        return grown / self._seconds if grown >= 0 else None

    def total(self, name: str) -> float | None:
        """Return the growth per second of a counter, over all its samples including new ones."""
        if self._before is None or self._seconds <= 0:
            return None
        grown = sum(self._now.of(name).values()) - sum(self._before.of(name).values())
        return grown / self._seconds if grown >= 0 else None

    def mean(self, name: str) -> float | None:
        """Return the mean of the values that a histogram observed between the readings."""
        now = self._now.of(name).get(())
        before = self._before.of(name).get(()) if self._before is not None else None
        if now is None or before is None or now["count"] <= before["count"]:
            return None
        return float((now["sum"] - before["sum"]) / (now["count"] - before["count"]))


def _broker(now: Reading, rates: _Rates) -> BrokerView:
    name, version = next(iter(now.of("linn_broker_info")), ("", ""))
    lag_s = rates.mean("linn_loop_lag_seconds")
    return BrokerView(
        name,
        version,
        now.one("linn_broker_uptime_seconds"),
        now.one("linn_process_memory_bytes"),
        now.one("linn_process_descriptors"),
        now.one("linn_process_descriptors_max"),
        sum(now.of("linn_listener_connections").values()),
        now.one("linn_transactions_open"),
        lag_s * 1000 if lag_s is not None else None,
        rates.total("linn_publish_errors_total"),
    )


def _topic(now: Reading, rates: _Rates, topic: str) -> TopicView:
    labels = (topic,)
    own = (topic, "")
    is_queue = own in now.of("linn_queue_unsettled_records")

    def of_queue(name: str) -> int | None:
        return now.one(name, own) if is_queue else None

    return TopicView(
        topic,
        rates.of("linn_topic_published_records_total", labels),
        rates.of("linn_topic_published_bytes_total", labels),
        rates.of("linn_topic_delivered_records_total", labels),
        rates.of("linn_topic_delivered_bytes_total", labels),
        now.one("linn_topic_records", labels),
        now.one("linn_topic_bytes", labels),
        now.one("linn_topic_consumers", labels),
        of_queue("linn_queue_ready_records"),
        of_queue("linn_queue_leased_records"),
        of_queue("linn_queue_decided_records"),
        of_queue("linn_queue_unsettled_records"),
        rates.of("linn_queue_redelivered_records_total", own),
        of_queue("linn_queue_dead_letters_total"),
    )


def _pipeline(now: Reading, rates: _Rates, name: str, state: str) -> PipelineView:
    labels = (name,)
    return PipelineView(
        name,
        state,
        rates.of("linn_spark_pipeline_rows_total", labels),
        now.one("linn_spark_pipeline_rows_total", labels),
        now.of("linn_spark_pipeline_lag_records").get(labels),
        now.of("linn_spark_pipeline_batch_seconds").get(labels),
        now.one("linn_spark_pipeline_restarts_total", labels),
    )


def _connection(now: Reading, rates: _Rates, labels: Labels) -> ConnectionView:
    number, peer, listener, protocol = labels
    return ConnectionView(
        int(number),
        peer,
        listener,
        protocol,
        rates.of("linn_connection_received_bytes_total", labels),
        rates.of("linn_connection_sent_bytes_total", labels),
        now.one("linn_connection_inflight_requests", labels),
        now.one("linn_connection_unsent_bytes", labels),
        now.one("linn_connection_held_bytes", labels),
    )
