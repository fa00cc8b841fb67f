"""The metrics of the broker as a whole and of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version

from linn.core.loop.memory_budget import MemoryShare
from linn.core.metrics.metric import Metric, MetricKind, Sample, Value
from linn.core.metrics.source import MetricSource


def _one(name: str, kind: MetricKind, help: str, value: Callable[[MetricSource], Value]) -> Metric:
    """Make a metric without labels."""

    def read(broker: MetricSource) -> list[Sample]:
        return [((), value(broker))]

    return Metric(name, kind, (), help, read)


def _counts(name: str, label: str, help: str, counts: Callable[[MetricSource], Mapping[str, int]]) -> Metric:
    """Make a counter with one label, read from a mapping of label to count."""

    def read(broker: MetricSource) -> list[Sample]:
        return [((key,), count) for key, count in dict(counts(broker)).items()]

    return Metric(name, "counter", (label,), help, read)


def _memory(name: str, help: str, value: Callable[[MemoryShare], int]) -> Metric:
    """Make a gauge with one sample per share of the memory budget."""

    def read(broker: MetricSource) -> list[Sample]:
        return [((share.name,), value(share)) for share in broker.memory.shares]

    return Metric(name, "gauge", ("share",), help, read)


@cache
def _version() -> str:
    """The installed version of linn."""
    return version("linn")


BROKER_METRICS: tuple[Metric, ...] = (
    Metric(
        "linn_broker_info",
        "gauge",
        ("name", "version"),
        "Always 1; the broker's name and version.",
        lambda broker: [((broker.name, _version()), 1)],
    ),
    _one(
        "linn_broker_uptime_seconds",
        "gauge",
        "Time since the start of the broker began.",
        lambda broker: broker.env.clock.monotonic() - broker.measurements.started_at,
    ),
    _one(
        "linn_broker_ready",
        "gauge",
        "1 while clients can connect; 0 during recovery and while it stops.",
        lambda broker: int(broker.read_state() == "ready"),
    ),
    _one("linn_broker_topics", "gauge", "Topics that exist.", lambda broker: len(broker.topics)),
    _one("linn_broker_exchanges", "gauge", "Exchanges that exist.", lambda broker: len(broker.routers)),
    _counts(
        "linn_publish_errors_total",
        "code",
        "Publish requests that failed, also for some of their records only, by the error's code.",
        lambda broker: broker.publisher.errors,
    ),
    _one(
        "linn_publish_unrouted_batches_total",
        "counter",
        "Published batches that were not stored: no binding matched, or interceptors dropped them.",
        lambda broker: broker.publisher.unrouted_batches,
    ),
    _counts(
        "linn_plugin_failures_total",
        "plugin",
        "Exceptions of observers, which have no other effect.",
        lambda broker: broker.observers.failures,
    ),
    _counts(
        "linn_loop_held_total",
        "plugin",
        "Steps of the loop that took longer than loop_held_max, by the plugin whose code ran. Only of `linn serve`.",
        lambda broker: broker.measurements.loop_held,
    ),
    _one(
        "linn_loop_lag_seconds",
        "histogram",
        "Delay of the wake-up of a task that sleeps for a second: the wait that long steps impose on all others.",
        lambda broker: broker.measurements.loop_lag.seconds,
    ),
    _one(
        "linn_turns_waiting",
        "gauge",
        "Connections that wait for their turn of the loop: if there are any, the broker is overloaded.",
        lambda broker: broker.turns.waiting,
    ),
    _memory(
        "linn_memory_bytes",
        "Memory in use, by share of the budget: `stored` and its part `indexed`, `unsent`, `received`.",
        lambda share: share.used_bytes,
    ),
    _memory(
        "linn_memory_bytes_max",
        "Size of the share, above which the broker applies backpressure.",
        lambda share: share.bytes_max,
    ),
    _one(
        "linn_process_memory_bytes",
        "gauge",
        "Memory of the process (resident).",
        lambda broker: broker.env.process.memory_bytes(),
    ),
    _one(
        "linn_process_descriptors",
        "gauge",
        "Open file descriptors.",
        lambda broker: broker.env.process.descriptors(),
    ),
    _one(
        "linn_process_descriptors_max",
        "gauge",
        "Limit of open file descriptors.",
        lambda broker: broker.env.process.descriptors_max(),
    ),
    _one(
        "linn_process_processor_seconds_total",
        "counter",
        "Processor time used.",
        lambda broker: broker.env.process.processor_s(),
    ),
)
