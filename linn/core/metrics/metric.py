"""A metric: one documented name, and how its samples are read from a running broker.

Laws: a metric is pulled. What happens per batch adds to plain integers on the objects that do the work; labels, sums
and ratios come into being when somebody looks. A counter never goes down while its labels exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from linn.core.loop.histogram import Histogram

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker

MetricKind = Literal["counter", "gauge", "histogram"]
Value = int | float | Histogram
Sample = tuple[tuple[str, ...], Value]
"""(the labels' values in the metric's order, the value); a Histogram is that of the broker, and may change."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One name. `docs/reference/metrics.md` is made from these."""

    name: str
    """As Prometheus has it: the unit comes last, and `_total` behind it for a counter."""
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    read: Callable[[Broker], Iterable[Sample]]
    """Its samples now. Synchronous, and does no I/O but what the operating system answers at once."""
    per_connection: bool = False
    """Whether it has samples for each connection: many where clients are many."""
