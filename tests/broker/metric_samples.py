"""Metrics of a running broker, for tests."""

from __future__ import annotations

from typing import Any

from linn.core.broker.broker import Broker
from linn.core.metrics.metric import Value


def samples(broker: Broker, name: str) -> dict[tuple[str, ...], Value]:
    """All samples of one metric."""
    (family,) = [family for family in broker.metrics.collect([name]) if family.metric.name == name]
    return dict(family.samples)


def value(broker: Broker, name: str, *labels: str) -> Any:
    """One sample."""
    return samples(broker, name)[labels]
