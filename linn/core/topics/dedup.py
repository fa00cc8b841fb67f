"""Deduplication: a message whose id a partition has seen within the topic's window is not stored again.

Laws: its publisher gets the place of the first one, as far as the batch has one place. The first one counts from its
append on, and not once its transaction is aborted; while that is open, it is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import Clock
from linn.core.errors.messages import MessageInDoubt
from linn.core.log.partition import Partition
from linn.core.log.producers import OFFSET_UNKNOWN
from linn.core.topics.message_ids import IDS_MAX, MessageIds, ids_of

_READ_BYTES = 1 << 20


class Dedup:
    """The windows of a topic's partitions."""

    def __init__(self, clock: Clock, window_ms: int) -> None:
        self.window_s = window_ms / 1000
        """May be changed: ids that are known stay known for the new window."""
        self._clock = clock
        self._ids: dict[int, MessageIds] = {}

    async def load(self, partition: Partition) -> None:
        """Know the newest records of a partition that was opened. Raises LogCorrupt, StorageError."""
        start, end = partition.log.bounds()
        ids = self._ids[partition.id.index] = MessageIds(end)
        offset = max(start, end - IDS_MAX)
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()
        while offset < end:
            batches = await partition.log.read(offset, _READ_BYTES)
            for batch in batches:
                age_s = max(0, now_ms - batch.append_time_ms) / 1000
                if age_s < self.window_s:
                    ids.note(batch, now_s - age_s, self.window_s)
            offset = batches[-1].end_offset

    def appended(self, partition: Partition, batch: RecordBatch) -> None:
        """Know the records of a batch that was appended."""
        ids = self._ids.get(partition.id.index)
        if ids is None:
            ids = self._ids[partition.id.index] = MessageIds(batch.base_offset)
        ids.note(batch, self._clock.monotonic(), self.window_s)

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

    def kept_from(self, index: int) -> int | None:
        """The offset from which on a partition's records are kept, so that a restart knows their ids; None: any."""
        ids = self._ids.get(index)
        if ids is None:
            return None
        ids.forget(self._clock.monotonic(), self.window_s)
        return ids.kept_from


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
