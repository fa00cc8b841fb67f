"""The registry: every metric of a broker by name.

`metric` defines one; `broker`, `connections`, `topics`, `transactions` and `cluster` list them. Protocols and
administration verbs read the metrics here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from linn.core.errors.tree import PluginError
from linn.core.metrics.broker import BROKER_METRICS
from linn.core.metrics.cluster import CLUSTER_METRICS
from linn.core.metrics.connections import CONNECTION_METRICS
from linn.core.metrics.metric import Metric, Sample
from linn.core.metrics.source import MetricSource
from linn.core.metrics.topics import TOPIC_METRICS
from linn.core.metrics.transactions import TRANSACTION_METRICS
from linn.core.ports.service import ServiceKind

METRICS: tuple[Metric, ...] = (
    *BROKER_METRICS,
    *CONNECTION_METRICS,
    *TOPIC_METRICS,
    *TRANSACTION_METRICS,
    *CLUSTER_METRICS,
)
"""linn's own metrics, in the order in which they are shown."""


class Family(NamedTuple):
    """A metric with its samples at one moment."""

    metric: Metric
    samples: Sequence[Sample]


class MetricRegistry:
    """All metrics of one broker."""

    def __init__(self, broker: MetricSource) -> None:
        self.metrics: dict[str, Metric] = {metric.name: metric for metric in METRICS}
        assert len(self.metrics) == len(METRICS), "a name is one metric"
        self._broker = broker

    def check_services(self, kinds: Iterable[ServiceKind]) -> None:
        """Check the names of services' metrics. Raises PluginError: a name belongs to linn itself."""
        for kind in kinds:
            for metric in kind.metrics:
                if metric.name in self.metrics:
                    text = f'the service "{kind.name}" has the metric {metric.name}, which belongs to linn itself'
                    raise PluginError(text)

    def add_service(self, kind: ServiceKind, samples: Callable[[ServiceKind, str], Iterable[Sample]]) -> None:
        """Add the metrics of a service that was made; metrics of other services are not shown."""
        for metric in kind.metrics:
            read = _reader(samples, kind, metric.name)
            self.metrics[metric.name] = Metric(metric.name, metric.kind, metric.labels, metric.help, read)

    async def watch_loop(self) -> None:
        """Measure the loop's lag until cancelled."""
        await self._broker.measurements.loop_lag.watch(self._broker.env.clock)

    async def measure(self, prefixes: Sequence[str] = ("",)) -> None:
        """Do the I/O that some of the metrics need whose names begin with one of `prefixes`. Call it before `collect`.

        Other tasks run in between. Cancellation: these metrics have their former values.
        """
        for metric in list(self.metrics.values()):
            if metric.measure is not None and metric.name.startswith(tuple(prefixes)):
                await metric.measure(self._broker)

    def collect(self, prefixes: Sequence[str] = ("",), *, per_connection: bool = True) -> Iterator[Family]:
        """Iterate over the metrics whose names begin with one of `prefixes`; each is read when the iterator reaches it.

        A reader of a broker with many topics lets other tasks run in between.
        """
        chosen = tuple(prefixes)
        for metric in list(self.metrics.values()):
            if metric.name.startswith(chosen) and (per_connection or not metric.per_connection):
                yield Family(metric, list(metric.read(self._broker)))


def _reader(
    samples: Callable[[ServiceKind, str], Iterable[Sample]], kind: ServiceKind, name: str
) -> Callable[[MetricSource], Iterable[Sample]]:
    return lambda _: samples(kind, name)
