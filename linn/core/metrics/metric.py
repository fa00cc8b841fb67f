"""A metric: one documented name, and the function that reads its samples from a running broker.

Laws: a metric is pulled. The work per batch only adds to plain integers on the objects that do it; labels, sums and
ratios are computed on reading. A counter never decreases while its labels exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from linn.core.loop.histogram import Histogram
from linn.core.metrics.source import MetricSource

MetricKind = Literal["counter", "gauge", "histogram"]
Value = int | float | Histogram
Sample = tuple[tuple[str, ...], Value]
"""(values of the labels in the metric's order, value). A Histogram is the broker's own object, and may change."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `docs/reference/metrics.md` is generated from these."""

    name: str
    """Name as in Prometheus: the unit comes last, followed by `_total` for a counter."""
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    read: Callable[[MetricSource], Iterable[Sample]]
    """Reads the samples. Synchronous; no I/O except calls that the operating system answers at once."""
    per_connection: bool = False
    """Whether it has samples per connection: many if there are many clients."""
    measure: Callable[[MetricSource], Awaitable[None]] | None = None
    """Does the I/O that `read` needs, before it; None: it needs none."""
