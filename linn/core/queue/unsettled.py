"""The records of a queue that are not settled, for readers that do not consume it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from linn.core.batch.batch import RecordBatch
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.log.selection import Selector
from linn.core.queue.subscription import SharedSubscription


class Unsettled:
    """The unsettled records of one partition, those in flight among them; a `Selector`."""

    def __init__(self, subscription: SharedSubscription, among: Selector | None) -> None:
        """`among`: only of the records that this selector chooses."""
        self._subscription = subscription
        self._among = among

    def choose(self, batch: RecordBatch, start: int, enough: int) -> Steps[Sequence[int]]:
        """Find the unsettled records; more of them may be settled before the read is over."""
        chosen: Sequence[int] = range(start, batch.count)
        if self._among is not None:
            chosen = yield from self._among.choose(batch, start, batch.count)
        found = array("I")
        offset = max(batch.base_offset, self._subscription.settled_before())
        while chosen and offset < batch.end_offset and len(found) < enough:
            end = min(offset + STEP_RECORDS, batch.end_offset)
            for first, behind in self._subscription.unsettled(offset, end):
                left, right = batch.index_at(first), batch.index_at(behind)
                found.extend(chosen[bisect_left(chosen, left) : bisect_left(chosen, right)])
            offset = end
            yield
        return found
