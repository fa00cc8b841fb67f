"""Deduplication: a message whose id a partition has seen within the topic's window is not stored again.

Laws: its publisher gets the place of the first one, as far as the batch has one place. The first one counts from its
append on, and not once its transaction is aborted; while that is open, it is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.batch.batch import RecordBatch
from linn.core.errors.messages import MessageInDoubt
from linn.core.log.partition import Partition
from linn.core.log.producers import OFFSET_UNKNOWN
from linn.core.topics.message_ids import KnownIds, MessageIds, ids_of


class Dedup(KnownIds):
    """The windows of a topic's partitions."""

    def find(self, partition: Partition, batch: RecordBatch, before: set[bytes]) -> tuple[Sequence[int], int]:
        """The indexes of the records of a batch that are new; and, if none is, the offset of the batch, or
        OFFSET_UNKNOWN where its records are in several places.

        `before`: ids in earlier batches of the same publish; new ids are added to it.

        Raises MessageInDoubt.
        """
        ids, keys = self._ids.get(partition.id.index), ids_of(batch)
        if ids is not None:
            ids.forget(self._clock.monotonic(), self.window_s)
        places = [None] * len(keys) if ids is None else ids.find(keys)
        if ids is not None and ids.writes.count:
            places = [None if place is None else _certain(partition, ids, place, batch) for place in places]
        fresh = list[int]()
        for index, (key, place) in enumerate(zip(keys, places, strict=True)):
            if place is None and key not in before:
                before.add(key)
                fresh.append(index)
        if fresh:
            return range(batch.count) if len(keys) < batch.count else fresh, OFFSET_UNKNOWN
        first = places[0]
        is_run = first is not None and places == list(range(first, first + len(places)))
        return (), first if first is not None and is_run else OFFSET_UNKNOWN


def _certain(partition: Partition, ids: MessageIds, place: int, batch: RecordBatch) -> int | None:
    """The place of a record that counts for a batch; None: its transaction was aborted. Raises MessageInDoubt."""
    for _, _, write in ids.writes.pieces(place, place + 1):
        if partition.transactions.hides(write):
            return None
        is_open = partition.transactions.is_open(write.producer_id, write.transaction)
        if is_open and write.producer_id != batch.producer_id:
            text = f"a message with the id of this one is at offset {place} of {partition.id}, in an open transaction"
            raise MessageInDoubt(text)
    return place
