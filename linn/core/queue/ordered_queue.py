"""Builds and follows the index of a dispatch order on one partition of a queue.

Laws: the index is derived from the log's batches, from their header columns alone, and is built anew at each start and
each change of the order, in turns. Batches that were stored without the hashes of their keys, such as dead letters and
those from before an order by key, are opened for them. Nothing is delivered until it has all records up to the end of
the log at its beginning, or until its window is full, so that the order is exact from the first delivery on. Records
beyond the window wait in the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

import trio

from linn.core.batch.batch import KEY_HASHES, RecordBatch
from linn.core.batch.builder import with_key_hashes
from linn.core.batch.steps import STEP_RECORDS, TURN_S
from linn.core.env.env import Clock, Spawn
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    BatchError,
    BatchMalformed,
    LimitExceeded,
    LogClosed,
    LogCorrupt,
    OffsetOutOfRange,
    StorageError,
    SyncFailed,
)
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S
from linn.core.queue.damage import Damage
from linn.core.queue.dispatch_order import INDEX_RECORD_BYTES, TopicOrder
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.offset_rows import ranges_of
from linn.core.queue.ordering import Ordering
from linn.core.queue.subscription import SharedSubscription

READ_BYTES = 1 << 18
"""Bytes of one read: a few milliseconds, in which other tasks run."""
ROOM_SHARE = 8
"""Fraction of the window, as 1/n, that is free before a full index goes on reading: not for each record."""


class IndexedQueue(Protocol):
    """One partition of a queue, as its index needs it."""

    partition: Partition
    subscription: SharedSubscription
    damage: Damage
    clock: Clock
    spawn: Spawn

    def settle_void(self, more: Sequence[Range]) -> None:
        """Settle offsets without a record, which no order has."""

    def has_more(self) -> None:
        """Offer records to consumers: there may be more of them."""


class OrderedQueue:
    """The index of one partition, and the task that reads the log for it."""

    def __init__(self, queue: IndexedQueue, order: TopicOrder) -> None:
        self.order = order
        self._queue = queue
        self._is_running = self._is_closed = self._is_searching = False
        self._until = 0
        """The offset up to which the index is built, however large the window is: records below it may be in flight."""
        self._ordering: Ordering | None = None

    @property
    def is_built(self) -> bool:
        """Whether records may be delivered."""
        return self._ordering is not None and self._ordering.is_built

    def is_ready(self) -> bool:
        """Whether the index has records; some orders may have to wait for others to be settled."""
        return self.is_built and self._ordering is not None and self._ordering.waiting > 0

    @property
    def size_bytes(self) -> int:
        """Memory of the index, without the records in flight."""
        return INDEX_RECORD_BYTES * self._ordering.waiting if self._ordering is not None else 0

    def begin(self) -> None:
        """Build the index anew."""
        subscription = self._queue.subscription
        start = subscription.settled_before()
        if self._ordering is not None:
            self._ordering.close()
        order = self.order
        subscription.ordering = self._ordering = Ordering(order.make(), order.window, start, order.memory)
        self._until = subscription.cursor
        self.go_on()

    def close(self) -> None:
        """Read no more, and give the memory back."""
        self._is_closed = True
        if self._ordering is not None:
            self._ordering.close()

    def go_on(self) -> None:
        """Index new records, if there is room."""
        ordering = self._ordering
        if self._is_running or self._is_closed or ordering is None:
            return
        if ordering.is_stale:
            self.begin()
            return
        stable = self._queue.partition.stable_offset
        if not ordering.is_built or (ordering.indexed < stable and self._has_room(ordering)):
            self._is_running = True
            self._queue.spawn(self._run)

    def _has_room(self, ordering: Ordering) -> bool:
        window = ordering.window
        return ordering.waiting <= window - max(1, window // ROOM_SHARE)

    def search_on(self) -> None:
        """Offer records again in another turn if the order has stopped a long search. Index more, if there is room: all
        that the order had may have been gone.
        """
        self.go_on()
        if self._ordering is not None and self._ordering.has_more and not self._is_searching:
            self._is_searching = True
            self._queue.spawn(self._offer_later)

    async def _offer_later(self) -> None:
        await trio.lowlevel.checkpoint()
        self._is_searching = False
        if not self._is_closed:
            self._queue.has_more()

    async def _run(self) -> None:
        try:
            while not self._is_closed and await self._step():
                pass
        except (SyncFailed, LogClosed, NotLeader):
            pass  # The queue ends as well, by what ended its log.
        finally:
            self._is_running = False

    async def _step(self) -> bool:
        """Index some batches; returns whether to go on."""
        queue, ordering = self._queue, self._ordering
        assert ordering is not None
        stable = queue.partition.stable_offset
        if ordering.indexed >= max(stable, self._until) or not (ordering.has_room or ordering.indexed < self._until):
            self._built(ordering)
            return False
        offset = max(ordering.indexed, queue.subscription.settled_before(), queue.partition.start_offset)
        if offset >= stable:
            ordering.indexed = offset
            self._built(ordering)
            return False
        try:
            batches = await queue.partition.read_whole(offset, READ_BYTES)
        except (SyncFailed, LogClosed, NotLeader):
            raise
        except OffsetOutOfRange:
            return True  # It was trimmed meanwhile.
        except LogCorrupt as error:
            self._index_unread(ordering, offset, (await queue.damage.find(offset, error)).stop)
            return True
        except StorageError:
            await queue.clock.sleep(ROOM_RETRY_S)
            return True
        if not batches:
            ordering.indexed = max(ordering.indexed, stable)
        for batch in batches:
            if self._is_closed or ordering is not self._ordering:
                return False
            await self._index(ordering, batch)
        if ordering.is_built:
            queue.has_more()
        return True

    def _built(self, ordering: Ordering) -> None:
        if not ordering.is_built:
            ordering.is_built = True
            self._queue.has_more()

    async def _index(self, ordering: Ordering, batch: RecordBatch) -> None:
        """Index one batch, in turns."""
        subscription, monotonic = self._queue.subscription, self._queue.clock.monotonic
        classes, until_s = ordering.classes_of(self._hashed(batch)), monotonic() + TURN_S
        try:
            at = batch.index_at(max(batch.base_offset, ordering.indexed, subscription.settled_before()))
            is_dense = batch.offset_deltas is None
        except BatchMalformed:
            self._index_unread(ordering, batch.base_offset, batch.end_offset)
            return
        if not is_dense:
            there = OffsetRanges(ranges_of([batch.offset(index) for index in range(batch.count)]))
            self._queue.settle_void(there.gaps(batch.base_offset, batch.end_offset))
        while at < batch.count:
            stop = min(at + STEP_RECORDS, batch.count)
            if is_dense:
                offsets: range | list[int] = range(batch.base_offset + at, batch.base_offset + stop)
            else:
                offsets = [batch.offset(index) for index in range(at, stop)]
            end = offsets[-1] + 1 if stop < batch.count else batch.end_offset
            subscription.index(offsets, classes[at:stop], end)
            at = stop
            if monotonic() > until_s:
                await trio.lowlevel.checkpoint()
                if self._is_closed or ordering is not self._ordering:
                    return
                until_s = monotonic() + TURN_S
        ordering.indexed = max(ordering.indexed, batch.end_offset)

    def _hashed(self, batch: RecordBatch) -> RecordBatch:
        """The batch with the hashes of its keys, if the order needs them; as it is if it has too many bytes of keys."""
        if self.order.needs_key_hashes and not batch.is_plain and batch.raw_fields[KEY_HASHES] is None:
            with contextlib.suppress(BatchError, LimitExceeded):
                return with_key_hashes(batch)
        return batch

    def _index_unread(self, ordering: Ordering, first: int, end: int) -> None:
        """Index records whose batch can't be read: their delivery finds out what becomes of them."""
        offsets = range(max(first, ordering.indexed), end)
        if offsets:
            self._queue.subscription.index(offsets, bytes(len(offsets)), end)
        ordering.indexed = max(ordering.indexed, end)
