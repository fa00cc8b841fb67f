"""Expiry: records of a queue that no consumer took in their time to live are made dead, wherever they are in it.

A record expires at its append time plus the smaller of the topic's TTL and its own. Both are wall times, since the log
has its append times from that clock: one that is set back delays expiry, and one that is set forward hastens it.

Laws:
- Records expire by events that the leader proposes, also where there is no consumer. No consumer gets an expired
  record: each batch that was read is checked once more before it is delivered.
- A leased or decided record outlives its time. It expires when it comes back.
- The topic's TTL needs no index. Append times ascend, so the records that are overdue are the first ones, and a search
  in the log finds the end of them. Records with TTLs of their own are in a `TimeIndex`, which a start rebuilds from the
  columns of their batches.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import compress
from typing import Protocol

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import pick_batch
from linn.core.env.alarm import Alarm
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    BatchMalformed,
    DeliveryNotCurrent,
    LinnError,
    LogCorrupt,
    OffsetOutOfRange,
    StorageError,
)
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S
from linn.core.queue.damage import Damage
from linn.core.queue.dead_letter import DeadReason
from linn.core.queue.effects import Effects
from linn.core.queue.lease import Lease
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.subscription import SharedSubscription
from linn.core.queue.subscription_log import SubscriptionLog
from linn.core.queue.time_index import TimeIndex

logger = logging.getLogger("linn.queue")

RECORDS_IN_A_TURN = 10_000
"""Records that expire without a pause, in about 20 ms where each differs from its neighbours."""
CLOCK_CHECK_S = 60.0
"""Longest sleep before the wall clock is read again: it may have been set forward."""
HELD_RETRY_S = 1.0
"""Time after which an overdue record expires that has come back from a consumer, unless it is delivered before."""
READ_BYTES = 1 << 20
"""Size of one read of the log while the index is rebuilt."""


def overdue_within(batch: RecordBatch, now_ms: int, ttl_ms: int | None) -> list[Range]:
    """The parts of a batch that have expired by a wall time, under the topic's TTL and the records' own."""
    age_ms = now_ms - batch.append_time_ms
    if ttl_ms is not None and age_ms >= ttl_ms:
        return [(batch.base_offset, batch.end_offset)]
    try:
        ttls = batch.ttls_ms if batch.is_timed else None
        due = [0 < ttl <= age_ms for ttl in ttls or ()]
        return _ranges([batch.offset(index) for index in compress(range(batch.count), due)])
    except BatchMalformed:
        return []  # Its consumer finds that out.


class Expiring(Protocol):
    """One partition of a queue, as its expiry sees it."""

    partition: Partition
    subscription: SharedSubscription
    log: SubscriptionLog
    damage: Damage
    clock: Clock
    spawn: Spawn
    is_closed: bool
    expired_records: int

    def follow(self, effects: Effects) -> None:
        """Do what a change of the subscription asks for."""


class Expiry:
    """The expiry of one partition of a queue. Made where the topic or a record has a TTL."""

    def __init__(self, queue: Expiring) -> None:
        self.ttl_ms: int | None = None
        """The topic's TTL; None: records without one of their own stay."""
        self._queue = queue
        self._index = TimeIndex()
        self._passed = 0
        """The offset below which everything is overdue under the topic's TTL; it is leased, or was made dead."""
        self._held: deque[Range] = deque()
        """Offsets overdue under TTLs of their own that were not waiting for delivery."""
        self._to_examine = 0
        """The number of ranges in `_held` to examine, because records have come back since."""
        self._is_running = self._runs_again = False
        self._alarm = Alarm(queue.clock, queue.spawn, self._ring)

    def set_ttl(self, ttl_ms: int | None) -> None:
        """Set the topic's TTL, also for the records that are there."""
        if ttl_ms != self.ttl_ms:
            self.ttl_ms, self._passed = ttl_ms, 0
            self.begin()

    def begin(self) -> None:
        """Let records expire, once the queue delivers."""
        if self._queue.log.is_open:
            self._wake_in(0.0)

    def close(self) -> None:
        """Let nothing expire any more."""
        self._alarm.cancel()

    # --- what comes and comes back ---

    def advanced(self) -> None:
        """Note that the queue has new records, of which the first may be the next to expire."""
        if self.ttl_ms is not None:
            self._wake_in(self.ttl_ms / 1000)

    def stored(self, batch: RecordBatch) -> None:
        """Note a batch of the log whose records have TTLs of their own. Raises BatchMalformed."""
        subscription = self._queue.subscription
        if self._index.end <= subscription.settled_before():
            self._index.clear()
        # A separate view: decoded columns must not stay with a batch that an engine keeps in memory.
        batch = RecordBatch(batch.message)
        ttls, appended_ms = batch.ttls_ms or (), batch.append_time_ms
        offsets = [batch.offset(index) for index in compress(range(batch.count), ttls)]
        if offsets and self._index.add([appended_ms + ttl_ms for ttl_ms in ttls if ttl_ms], offsets):
            self._index.thin(subscription.unsettled)
        self._set_alarm()

    def came_back(self) -> None:
        """Note that records were returned, which may be overdue."""
        self._to_examine = len(self._held)
        if self._held or self._passed > self._queue.subscription.settled_before():
            self._wake_in(HELD_RETRY_S)

    async def rebuild(self, end: int) -> None:
        """Put the unsettled records below an offset into the index."""
        await read_timed(self._queue, end, self.stored)

    # --- expiring ---

    def overdue(self, batches: Sequence[RecordBatch]) -> list[Range]:
        """The parts of batches read from this partition that have expired by now."""
        now_ms = self._queue.clock.now_ms()
        return [part for batch in batches for part in overdue_within(batch, now_ms, self.ttl_ms)]

    def expire_leased(self, consumer: int, lease: Lease, overdue: Sequence[Range]) -> None:
        """Make overdue records of a lease dead that no consumer has seen: this attempt does not count."""
        queue = self._queue
        held = OffsetRanges(lease.ranges())
        parts = [part for first, end in overdue for part in held.intersect(first, end)]
        with suppress(DeliveryNotCurrent):  # The lease ended meanwhile, and the records are back.
            queue.subscription.put_back(consumer, lease.delivery_id, parts, queue.clock.monotonic(), 0)
        for part in parts:
            self._expire(*part)
        queue.log.flush_or_keep()

    def fresh(
        self, batches: Sequence[RecordBatch], overdue: Sequence[Range], accepts: Sequence[int]
    ) -> Sequence[RecordBatch]:
        """Batches without their overdue records, for a consumer at which all count as delivered already.

        Raises BatchMalformed, FormatUnknown.
        """
        gone, partition, found = OffsetRanges(overdue), self._queue.partition, list[RecordBatch]()
        self._queue.expired_records += gone.count
        for batch in batches:
            kept = [index for index in range(batch.count) if batch.offset(index) not in gone]
            if len(kept) == batch.count:
                found.append(batch)
            elif kept:
                covers = range(batch.base_offset, batch.end_offset)
                found.append(partition.accepted(pick_batch(partition.native(batch), kept, covers), accepts))
        return found

    def _ring(self) -> None:
        self._runs_again = self._is_running
        if not self._is_running:
            self._is_running = True
            self._queue.spawn(self._run)

    async def _run(self) -> None:
        queue = self._queue
        try:
            while queue.log.is_open and (self._expire_own() | await self._expire_oldest()):
                await trio.lowlevel.checkpoint()
        except LinnError as error:
            _warn(queue, error)
            self._wake_in(ROOM_RETRY_S)
        finally:
            self._is_running = False
        self._set_alarm()
        if self._runs_again:
            self._wake_in(0.0)

    def _set_alarm(self) -> None:
        due_ms = self._index.next_due_ms()
        if due_ms is not None:
            self._wake_in((due_ms - self._queue.clock.now_ms()) / 1000)

    def _wake_in(self, wait_s: float) -> None:
        if not self._queue.is_closed:
            self._alarm.set(self._queue.clock.monotonic() + min(max(wait_s, 0.0), CLOCK_CHECK_S))

    def _expire(self, first: int, end: int) -> int:
        """Make the records of [first, end) dead that wait for delivery; returns their number. Call `log.flush` then."""
        effects = self._queue.subscription.dead_letter(first, end, DeadReason.EXPIRED)
        self._queue.expired_records += effects.dead
        self._queue.follow(effects)
        return effects.dead

    def _expire_own(self) -> bool:
        """Expire records with TTLs of their own, some at least; False: none is due."""
        queue = self._queue
        subscription, stable = queue.subscription, queue.partition.stable_offset
        now_ms = queue.clock.now_ms()
        due = _ranges(self._index.take(now_ms, RECORDS_IN_A_TURN))
        if not due:
            due = [self._held.popleft() for _ in range(min(self._to_examine, RECORDS_IN_A_TURN))]
            self._to_examine -= len(due)
        for first, end in due:
            if end > stable:  # Readers can't see it yet.
                hidden = range(max(first, stable), end)
                self._index.add([now_ms + round(1000 * HELD_RETRY_S)] * len(hidden), hidden)
                end = hidden.start
            if first < end and self._expire(first, end) < end - first:
                self._held += subscription.unsettled(first, end)
        if due:
            queue.log.flush_or_keep()
        return bool(due)

    async def _expire_oldest(self) -> bool:
        """Expire records under the topic's TTL, some at least; False: none is due. Raises StorageError."""
        queue, ttl_ms = self._queue, self.ttl_ms
        if ttl_ms is None:
            return False
        low = max(queue.subscription.settled_before(), queue.partition.start_offset)
        passed = self._passed = max(self._passed, low)
        end = await self._overdue_end(passed, min(queue.partition.stable_offset, passed + RECORDS_IN_A_TURN), ttl_ms)
        if not queue.log.is_open or self.ttl_ms != ttl_ms:
            return False
        self._passed = max(passed, end)
        if low < end:
            self._expire(low, end)
            queue.log.flush_or_keep()
        return end > passed

    async def _overdue_end(self, first: int, end: int, ttl_ms: int) -> int:
        """The end of the records of [first, end) that are overdue; where some are not, the alarm is set for the next.

        The search doubles its steps until it finds one that is not, and then halves them.
        """
        partition, clock = self._queue.partition, self._queue.clock
        low, high, step, is_widening, left_ms = first, end, 1, True, 0
        while low < high:
            at = min(low + step - 1, high - 1) if is_widening else (low + high) // 2
            try:
                batch = await partition.batch_at(at)
            except OffsetOutOfRange:
                low = max(at + 1, partition.start_offset)  # They are trimmed.
                continue
            except LogCorrupt:  # It waits for a whole file, as its delivery does, and so does what comes behind it.
                high, is_widening, left_ms = at, False, round(1000 * CLOCK_CHECK_S)
                continue
            due_ms = batch.append_time_ms + ttl_ms - clock.now_ms()
            if due_ms <= 0:
                low, step = max(batch.end_offset, at + 1), 2 * step
            else:
                high, is_widening, left_ms = min(batch.base_offset, at), False, due_ms
        if left_ms:
            self._wake_in(left_ms / 1000)
        return min(low, end)


async def read_timed(queue: Expiring, end: int, take: Callable[[RecordBatch], None]) -> None:
    """Read the log of a queue from the first unsettled record up to an offset, and take each timed batch of it."""
    partition, first = queue.partition, queue.subscription.settled_before()
    while first < end and queue.log.is_open:
        first = max(first, partition.start_offset)
        try:
            batches = await partition.read_log(first, READ_BYTES)
        except OffsetOutOfRange:
            continue  # The log was trimmed meanwhile.
        except LogCorrupt as error:
            first = (await queue.damage.find(first, error)).stop
            continue
        except StorageError as error:
            _warn(queue, error)
            await queue.clock.sleep(ROOM_RETRY_S)
            continue
        for batch in batches:
            with suppress(BatchMalformed):
                if batch.is_timed and batch.base_offset < end:
                    take(batch)
            await trio.lowlevel.checkpoint()
        first = batches[-1].end_offset if batches else end


def _warn(queue: Expiring, error: LinnError) -> None:
    if queue.log.is_open:
        id = queue.partition.id
        text = "%(partition)s: records can't be followed in time now, will try again: %(error)s"
        logger.warning(text, {"partition": str(id), "topic": id.topic} | log_fields(error))


def _ranges(offsets: Sequence[int]) -> list[Range]:
    """Ascending offsets as ranges."""
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found
