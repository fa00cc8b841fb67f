"""The registry: every metric of a broker by name, and those counts that no other object holds.

`metric` says what one is; `broker_metrics`, `connection_metrics` and `topic_metrics` which there are. Whoever shows
them reads them here: a protocol, an administration verb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from linn.core.log.storage_traffic import StorageTraffic
from linn.core.loop.lag import LoopLag
from linn.core.metrics.broker import BROKER_METRICS
from linn.core.metrics.connections import CONNECTION_METRICS
from linn.core.metrics.metric import Metric, Sample
from linn.core.metrics.topics import TOPIC_METRICS

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker

METRICS: tuple[Metric, ...] = (*BROKER_METRICS, *CONNECTION_METRICS, *TOPIC_METRICS)
"""All metrics that linn has, in the order in which they are shown."""


class Family(NamedTuple):
    """A metric with its samples at one moment."""

    metric: Metric
    samples: Sequence[Sample]


class MetricRegistry:
    """All metrics of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.metrics: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
        assert len(self.metrics) == len(METRICS), "a name is one metric"
        self.started_at: float = broker.env.clock.monotonic()
        self.loop_lag: LoopLag = LoopLag()
        self.publish_errors: dict[str, int] = {}
        """Publish requests that failed, by the error's code."""
        self.unrouted_batches: int = 0
        """Published, and stored nowhere."""
        self.loop_held: Mapping[str, int] = {}
        """Steps that held up the loop, by plugin; a watchdog's, where one looks on. Its thread writes it."""
        self.storages: dict[str, StorageTraffic] = {}
        """By the storage's name; those that were in use."""
        self._broker = broker

    async def watch_loop(self) -> None:
        """Measure how late the loop is, until cancelled."""
        await self.loop_lag.watch(self._broker.env.clock)

    def storage(self, name: str) -> StorageTraffic:
        """Where the logs of a storage are counted."""
        return self.storages.setdefault(name, StorageTraffic(name))

    def publish_failed(self, topic: str | None, code: str) -> None:
        """Count a publish request that failed: to a topic, or to an exchange (None)."""
        self.publish_errors[code] = self.publish_errors.get(code, 0) + 1
        known = self._broker.topics.get(topic) if topic is not None else None
        if known is not None:
            known.publish_errors += 1

    def collect(self, prefixes: Sequence[str] = ("",), *, per_connection: bool = True) -> Iterator[Family]:
        """The metrics whose names begin with one of `prefixes`, each read when the iterator comes to it.

        Whoever reads those of a broker with many topics gives other tasks their turn in between.
        """
        chosen = tuple(prefixes)
        for metric in self.metrics.values():
            if metric.name.startswith(chosen) and (per_connection or not metric.per_connection):
                yield Family(metric, list(metric.read(self._broker)))
