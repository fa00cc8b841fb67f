"""Arrivals: batches that a consumer's subscriptions have received, and not handed to the application yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from linn.client.consume.message import Batch
from linn.client.consume.settling import Delivery

Unread = tuple[Delivery, int, int]
"""Unread records: delivery, first offset, and offset after the last."""
Matches = Callable[[Batch], bool]
TakeUnread = Callable[[Matches], list[Unread]]


def rest_of(batch: Batch, indexes: Iterator[int]) -> list[Unread]:
    """Exhaust an iterator over a batch's indexes and return the rest. Safe while another thread calls `next`."""
    rest = list(indexes)
    if not rest or batch._delivery is None:
        return []
    return [(batch._delivery, batch._offset(rest[0]), batch._offset(rest[-1] + 1))]


class Arrivals:
    """Batches in the order of arrival. A batch counts as handed out when it leaves."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def extend(self, batches: Iterable[Batch]) -> None:
        """Add the batches of one delivery."""
        self._batches.extend(batches)

    def is_next_wanted(self) -> bool:
        """Tell whether there is a batch to take. Batches whose lease ended while they waited are dropped."""
        while self._batches and not self._batches[0]._is_wanted():
            self.take()
        return bool(self._batches)

    def take(self) -> Batch:
        """Take the first batch."""
        batch = self._batches.popleft()
        batch._handed_over()
        return batch

    def take_rest_of(self, delivery: Delivery | None) -> list[Batch]:
        """Take the following batches of the same delivery, and check their CRCs. Raises BatchCorrupt."""
        taken: list[Batch] = []
        while self.is_next_wanted() and self._batches[0]._delivery is delivery:
            taken.append(self.take())
            taken[-1].records.check_crc()
        return taken

    def take_up_to(self, records_max: int) -> list[Batch]:
        """Take the first batch, and others up to `records_max` records in all."""
        taken: list[Batch] = []
        while self._batches and (not taken or len(self._batches[0]) <= records_max):
            batch = self.take()
            records_max -= len(batch)
            taken.append(batch)
        return taken

    def take_back(self, matches: Matches) -> list[Unread]:
        """Take the batches that match, and return their records."""
        unread: list[Unread] = []
        batches, self._batches = self._batches, deque()
        for batch in batches:
            if matches(batch):
                batch._handed_over()
                unread += rest_of(batch, iter(batch._indexes))
            else:
                self._batches.append(batch)
        return unread

    def drop_unwanted(self) -> None:
        """Drop batches that must not be handed out any more."""
        self.take_back(lambda batch: not batch._is_wanted())
