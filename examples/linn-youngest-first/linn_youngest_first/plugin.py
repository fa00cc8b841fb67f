"""The order `youngest`: last in, first out. What was published last is delivered next, and what comes back keeps its
place.

For work whose value falls with its age, such as thumbnails for whoever looks at the page now.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from linn.api import DispatchOrder, OrderKind, OrderOptions, RecordBatch, Taken, hookimpl


class YoungestFirst:
    """The order of one partition: see `linn.api.DispatchOrder`."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        """Offsets of ready records, negated: the smallest is the youngest."""

    def classify(self, batch: RecordBatch) -> Sequence[int]:
        """One class for all: the offset says everything."""
        return bytes(batch.count)

    def add(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Add ready records, new ones or such as come back."""
        if len(offsets) > len(self._heap):  # As when the index is built: cheaper than one by one.
            self._heap += [-offset for offset in offsets]
            heapify(self._heap)
        else:
            for offset in offsets:
                heappush(self._heap, -offset)

    def take(self, records_max: int) -> Taken:
        """Take the youngest records."""
        count = min(records_max, len(self._heap))
        return Taken([-heappop(self._heap) for _ in range(count)], bytes(count))

    def hold(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Nothing: records that are taken do not affect the others."""

    def release(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Nothing, as for `hold`."""


def youngest_first(options: OrderOptions) -> DispatchOrder:
    """Make the order of one partition; it takes no options."""
    return YoungestFirst()


@hookimpl
def linn_register_order() -> OrderKind:
    """Register `order = "youngest"`."""
    return OrderKind("youngest", youngest_first)
