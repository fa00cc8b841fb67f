"""docs/reference/metrics.md, rendered from the metrics themselves: `python tests/reference_pages metrics`."""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.loop.histogram import SECONDS
from linn.core.metrics.broker import BROKER_METRICS
from linn.core.metrics.cluster import CLUSTER_METRICS
from linn.core.metrics.connections import CONNECTION_METRICS
from linn.core.metrics.metric import Metric
from linn.core.metrics.topics import TOPIC_METRICS
from linn.core.metrics.transactions import TRANSACTION_METRICS
from linn.core.plugins.manager import built_in
from linn.core.ports.service import ServiceMetric

_INTRO = f"""# Metrics

The metrics of a broker, by their names in Prometheus. [Monitor a broker](../how-to/monitor.md) says how to read them.
(This page is made from the metrics themselves: `python tests/reference_pages metrics`.)

- A **counter** counts since the broker's start, from 0; a **gauge** is a current value; a **histogram** has buckets
  from {SECONDS[0]:g} to {SECONDS[-1]:g} seconds (NAME`_bucket`, NAME`_sum`, NAME`_count`).
- **Names are stable** within a minor version. Labels and metrics may be added.
- Numbers are of the broker, not of a client: a record that goes to three topics is published three times.
"""
_SECTIONS: Sequence[tuple[str, str, Sequence[Metric]]] = (
    ("Broker and process", "", BROKER_METRICS),
    (
        "Listeners and connections",
        "Metrics with the label `connection` exist as long as the connection does; over HTTP only if the listener has\n"
        "`per_connection = true`. `peer` is the client's address, or that of the Unix socket.",
        CONNECTION_METRICS,
    ),
    ("Topics, queues, groups and storage", "", TOPIC_METRICS),
    ("Transactions", "", TRANSACTION_METRICS),
    ("Cluster", "As this node knows it. A broker without `[cluster]` does not have them.", CLUSTER_METRICS),
)
_OF_SERVICES = (
    "These exist while the service runs, which a table in the configuration or in a topic turns on. They count\n"
    "since the broker's start."
)


def page() -> str:
    """Render the page."""
    sections = [_section(*section) for section in _SECTIONS]
    for _, kind in sorted(built_in().services.items()):
        if kind.metrics:
            sections.append(_section(f"Service `{kind.name}`", _OF_SERVICES, kind.metrics))
    return "\n".join([_INTRO, *sections])


def _section(title: str, text: str, metrics: Sequence[Metric | ServiceMetric]) -> str:
    rows = "\n".join(_row(metric) for metric in metrics)
    words = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{words}| name | kind | labels | meaning |\n|---|---|---|---|\n{rows}\n"


def _row(metric: Metric | ServiceMetric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |".replace("|  |", "| |")
