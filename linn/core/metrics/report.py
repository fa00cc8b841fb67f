"""Metrics as JSON, for the administration verb `metrics.show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linn.core.env.env import Clock
from linn.core.errors.tree import ConfigError, LimitExceeded
from linn.core.loop.histogram import Histogram
from linn.core.metrics.metric import Value
from linn.core.metrics.registry import Family, MetricRegistry

SAMPLES_MAX = 200_000
"""Limit of the samples of one report: about 8 MiB, half of the largest frame."""


async def metric_report(metrics: MetricRegistry, clock: Clock, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics whose names begin with one of the argument `names`, or all. Lets other tasks run in between.

    Raises:
        ConfigError: `names` is not a list of texts.
        LimitExceeded: there are more samples than SAMPLES_MAX.
    """
    names = arguments.get("names", [""])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError('the argument "names" must be a list of texts')
    report = []
    count = 0
    for family in metrics.collect(names):
        count += len(family.samples)
        if count > SAMPLES_MAX:
            raise LimitExceeded(f"more than {SAMPLES_MAX} samples: ask for fewer names, or read /metrics")
        report.append(_family(family))
        await clock.sleep(0)
    return report


def _family(family: Family) -> dict[str, Any]:
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
