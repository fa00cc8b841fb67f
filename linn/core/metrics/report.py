"""Metrics as JSON, for the administration verb `metrics.show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linn.core.env.env import Clock
from linn.core.errors.tree import LimitExceeded
from linn.core.loop.histogram import Histogram
from linn.core.metrics.metric import Value
from linn.core.metrics.registry import Family, MetricRegistry
from linn.descriptions import MetricDescription

SAMPLES_MAX = 200_000
"""Limit of the samples of one report: about 8 MiB, half of the largest frame."""
NAMES_MAX = 256
"""Limit of the names of one report: each is compared with all metric names, of which there are fewer."""


async def metric_report(metrics: MetricRegistry, clock: Clock, names: Sequence[str]) -> list[MetricDescription]:
    """Report the metrics whose names begin with one of `names`. Lets other tasks run in between.

    Raises LimitExceeded: there are more samples than SAMPLES_MAX, or more names than NAMES_MAX.
    """
    if len(names) > NAMES_MAX:
        raise LimitExceeded(f"{len(names)} names of metrics, more than {NAMES_MAX}")
    report = []
    count = 0
    await metrics.measure(names)
    for family in metrics.collect(names):
        count += len(family.samples)
        if count > SAMPLES_MAX:
            raise LimitExceeded(f"more than {SAMPLES_MAX} samples: ask for fewer names, or read /metrics")
        report.append(_family(family))
        await clock.sleep(0)
    return report


def _family(family: Family) -> MetricDescription:
    metric = family.metric
    return {
        "name": metric.name,
        "kind": metric.kind,
        "labels": list(metric.labels),
        "samples": [[list(labels), _value(value)] for labels, value in family.samples],
    }


def _value(value: Value) -> Any:
    if not isinstance(value, Histogram):
        return value
    buckets = [[bound if bound != float("inf") else None, count] for bound, count in value.cumulated()]
    return {"count": value.count, "sum": value.sum, "buckets": buckets}
