"""The timing log of one partition: records that go to their topic later, each at its time.

A record waits here as a record of a queue does, without consumers. When it is due it leaves by a step of a transfer
(`transfer`): it is made dead and intended in one event, published to the partition that it was chosen for, and settled.

Laws:
- No record leaves before its time by the wall clock. One that is set back delays, and loses or repeats nothing.
- Records leave in the order of their times, and with equal times in the order in which they came. A start reads all
  that wait before the first one leaves.
- The times are a function of the log: its column of times, and the moves that are events of the state log.
- Records beyond the stable offset do not count yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, islice
from typing import Any

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.record import DUE_MS_MAX, Record
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.env.alarm import Alarm
from linn.core.errors.texts import counted
from linn.core.errors.tree import BatchMalformed, LimitExceeded, LogCorrupt, OffsetOutOfRange
from linn.core.queue.dead_letter import DeadReason, Intent
from linn.core.queue.effects import Effects
from linn.core.queue.expiry import CLOCK_CHECK_S, read_timed
from linn.core.queue.id_rows import ROW_BYTES, IdRows, each_id_of, offset_in
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.time_index import RUN_RECORDS, TimeIndex
from linn.core.queue.transfer import Numbers, TransferSource
from linn.message_status import MessageState, ScheduledOutcome

SCHEDULED_MAX = 1 << 22
"""Limit of the records that wait in one timing log: 50 MB of index."""
SCHEDULED_AT_ONCE = 1_000
"""Records of one step: few commits at high rates, and a step of a few milliseconds."""


PART_ROWS = 1 << 16
"""Ids in one part of the table of ids: 1.5 MiB, of which a part that is thinned is examined in turns of 1 ms."""


class WaitingIds:
    """The ids of the records that wait in one timing log.

    Rows of records that have left stay until their part is thinned: `count` says when that is worth it.
    """

    def __init__(self) -> None:
        self._parts = [IdRows()]

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum([part.count for part in self._parts])

    def add(self, batch: RecordBatch) -> None:
        """Add the records of a stamped batch."""
        if self._parts[-1].count >= PART_ROWS:
            self._parts.append(IdRows())
        self._parts[-1].add(batch)

    def find(self, id: bytes) -> int | None:
        """The offset of a record with an id, of the newest as a rule; None: there is none."""
        return next((at for part in reversed(self._parts) if (at := part.newest(id)) is not None), None)

    async def thin(self, is_wanted: Callable[[int], bool]) -> None:
        """Drop the first part; its rows of wanted offsets go into a new part, behind all others."""
        part, kept = self._parts[0], IdRows()
        self._parts.append(kept)
        for number, chunk in enumerate(part.chunks):
            for place in range(len(chunk) // ROW_BYTES):
                if is_wanted(offset_in(chunk, place)):
                    kept.chunks[number] += chunk[place * ROW_BYTES : (place + 1) * ROW_BYTES]
                    kept.count += 1
            await trio.lowlevel.checkpoint()
        self._parts.remove(part)


class ScheduledQueue(PartitionQueue):
    """The records that wait for their time, of one partition of a topic."""

    moved_what = "scheduled records"

    def __init__(self, *args: Any) -> None:
        """Make it with the arguments of `PartitionQueue`."""
        super().__init__(*args)
        self.subscription.delay_ms_max = DUE_MS_MAX
        self._index = TimeIndex()
        self._uncommitted: deque[tuple[int, Sequence[int], Sequence[int]]] = deque()
        """Batches beyond the stable offset: their ends, times and offsets."""
        self._built = trio.Event()
        """Set when the index has all records that were there at the start."""
        self._ids: WaitingIds | None = None
        """None: the topic knows no ids."""
        self._is_thinning = False
        self._due_alarm = Alarm(self.clock, self.spawn, self._ring)

    # --- what waits ---

    @property
    def waiting_count(self) -> int:
        """The number of records that have not left."""
        return self.subscription.unsettled_count(self.partition.log.bounds()[1])

    def check_room(self, count: int) -> None:
        """Check that so many more records may wait. Raises LimitExceeded."""
        if self.waiting_count + count > SCHEDULED_MAX:
            has = f"{counted(self.waiting_count, 'record')} of {SCHEDULED_MAX:,}"
            raise LimitExceeded(f"partition {self.partition.id.index} has {has} that wait for their time")

    def _begin_expiry(self) -> None:
        self.partition.on_timed = self._appended
        self.spawn(partial(self._build, self.partition.log.bounds()[1]))

    def _stop(self) -> bool:
        self._due_alarm.cancel()
        self._built.set()  # Nobody waits for it any more.
        return super()._stop()

    async def _build(self, end: int) -> None:
        """Index the records below an offset, many at a time."""
        dues, offsets = list[int](), list[int]()
        uncommitted: list[tuple[int, Sequence[int], Sequence[int]]] = []

        def take(batch: RecordBatch) -> None:
            more = _times_of(batch)
            self._note_ids(batch)
            if batch.end_offset > self.partition.stable_offset:
                uncommitted.append((batch.end_offset, *more))
                return
            dues.extend(more[0])
            offsets.extend(more[1])
            if len(offsets) >= RUN_RECORDS:
                add()

        def add() -> None:
            subscription = self.subscription
            wanted = OffsetRanges(subscription.unsettled(offsets[0], offsets[-1] + 1)) if offsets else ()
            kept = [(due, offset) for due, offset in zip(dues, offsets, strict=True) if offset in wanted]
            if subscription.delayed_count:  # They were moved.
                kept = [(subscription.postponed_ms(offset) or due, offset) for due, offset in kept]
            if kept:
                self._index.add([due for due, _ in kept], [offset for _, offset in kept])
            dues.clear()
            offsets.clear()

        await read_timed(self, end, take)
        add()
        self._uncommitted.extendleft(reversed(uncommitted))
        self._index_committed()
        self._built.set()
        self._go_on()

    def _appended(self, batch: RecordBatch) -> None:
        """Note a batch, which may not be committed yet."""
        self._uncommitted.append((batch.end_offset, *_times_of(batch)))
        self._note_ids(batch)

    def _on_advance(self) -> None:
        super()._on_advance()
        self._index_committed()
        self._go_on()

    def _index_committed(self) -> None:
        stable = self.partition.stable_offset
        while self._uncommitted and self._uncommitted[0][0] <= stable:
            _, dues, offsets = self._uncommitted.popleft()
            if self._index.add(dues, offsets):
                self._index.thin(self.subscription.unsettled)

    # --- ids ---

    def keep_ids(self, *, keeps: bool) -> None:
        """Know the ids of the records from now on, or, before a start, of all that wait; False: forget them."""
        self._ids = (self._ids or WaitingIds()) if keeps else None

    def _note_ids(self, batch: RecordBatch) -> None:
        if self._ids is not None:
            self._ids.add(batch)
            if not self._is_thinning and self._has_old_ids(self._ids):
                self._is_thinning = True
                self.spawn(self._thin_ids)

    def _has_old_ids(self, ids: WaitingIds) -> bool:
        return ids.count > 2 * (self.waiting_count + PART_ROWS)

    async def _thin_ids(self) -> None:
        try:
            while (ids := self._ids) is not None and not self.is_closed and self._has_old_ids(ids):
                await ids.thin(lambda offset: bool(self.subscription.unsettled(offset, offset + 1)))
        finally:
            self._is_thinning = False

    async def until_built(self) -> None:
        """Wait until all records that were there at the start are known, unless the disk is too full for a start."""
        if self.log.is_open:
            await self._built.wait()

    def state_of(self, id: bytes) -> tuple[int, MessageState, str] | None:
        """The number and the state of a record with an id, and "leaving" if it is due; None: none waits."""
        offset = None if self._ids is None else self._ids.find(id)
        if offset is None or not self.subscription.unsettled(offset, offset + 1):
            return None
        if offset >= self.partition.stable_offset:
            return offset, "in_doubt", ""
        return offset, "scheduled", "leaving" if self.subscription.is_dead(offset, offset + 1) else ""

    async def id_of(self, offset: int) -> bytes:
        """The id of a record; b"": it can't be read. Raises StorageError."""
        try:
            batch = await self.partition.batch_at(offset)
            return each_id_of(batch)[batch.index_at(offset)]
        except (LogCorrupt, OffsetOutOfRange, BatchMalformed):
            return b""

    # --- leaving ---

    def has_to_move(self) -> bool:
        """Whether a step was begun, or a record is due."""
        if not self._built.is_set():
            return False
        due_ms = self._index.next_due_ms()
        return bool(self.subscription.dead_count) or (due_ms is not None and due_ms <= self.clock.now_ms())

    def _go_on(self) -> None:
        """Move due records, and set the timer for the next one."""
        if not self.is_closed and (deadline := self._ring()) is not None:
            self._due_alarm.set(deadline)

    def _ring(self) -> float | None:
        """Move due records; returns the deadline of the next one if none is due."""
        if self.has_to_move():
            self.dead_letters.begin_if_due()
            return None
        due_ms = self._index.next_due_ms()
        if not self._built.is_set() or due_ms is None:
            return None
        # The wall clock may be set forward meanwhile.
        return self.clock.monotonic() + min((due_ms - self.clock.now_ms()) / 1000, CLOCK_CHECK_S)

    def moved(self) -> None:
        """Go on after a step."""
        self._go_on()

    def take_due(self, records_max: int) -> list[tuple[int, int]]:
        """Take the next records that are due out of the index: (time, offset), in this order."""
        self._index_committed()
        due = self._index.take_in_order(self.clock.now_ms(), records_max)
        return list(dict.fromkeys(filter(self._is_current, due)))

    def _is_current(self, row: tuple[int, int]) -> bool:
        """Whether a row of the index is about a record that waits, and was not moved to another time."""
        due_ms, offset = row
        return self.subscription.is_waiting(offset) and self.subscription.postponed_ms(offset) in (0, due_ms)

    def wait_again(self, rows: Sequence[tuple[int, int]]) -> None:
        """Put records into the index again, as far as they still wait."""
        left = list(filter(self._is_current, rows))
        if left:
            self._index.add([due_ms for due_ms, _ in left], [offset for _, offset in left])

    # --- what users ask for ---

    def first(self, records_max: int) -> Steps[list[tuple[int, int]]]:
        """The records that come next, as (time, offset); run the steps to their end."""
        found, rows = dict[tuple[int, int], None](), self._index.in_order()
        while len(found) < records_max and (some := list(islice(rows, STEP_RECORDS))):
            found.update(dict.fromkeys(filter(self._is_current, some)))
            yield
        return list(found)[:records_max]

    async def due_ms_of(self, offset: int) -> int:
        """The time at which a record comes; 0: none waits there. Raises StorageError."""
        if not 0 <= offset < self.partition.stable_offset or not self.subscription.is_waiting(offset):
            return 0
        try:
            batch = await self.partition.batch_at(offset)
            dues = RecordBatch(batch.message).dues_ms
            due_ms = 0 if dues is None else dues[batch.index_at(offset)]
        except (LogCorrupt, OffsetOutOfRange, BatchMalformed):
            return 0
        return self.subscription.postponed_ms(offset) or due_ms

    def change(self, offset: int, due_ms: int | None, *, is_dry: bool = False) -> ScheduledOutcome:
        """Let a record come at another time, or never (None), and return the outcome. It is durable once the log is.

        `is_dry`: change nothing.
        """
        subscription = self.subscription
        if not 0 <= offset < self.partition.stable_offset or not subscription.is_waiting(offset):
            return "leaving" if subscription.is_dead(offset, offset + 1) else "gone"
        if due_ms is None:
            if not is_dry:
                self.follow(subscription.settle_void(offset, offset + 1))
            return "cancelled"
        if not is_dry:
            subscription.postpone(offset, offset + 1, due_ms)
            self._index.add([due_ms], [offset])
            self._go_on()
        return "moved"

    def _expire(self) -> float | None:
        return None  # A record stays postponed until it leaves.

    def begin_step(self, ranges: Sequence[Range], intent: Intent) -> None:
        """Intend records that wait: none of them can be cancelled any more."""
        for first, end in ranges:
            self.subscription.dead_letter(first, end, DeadReason.EXPIRED)
            self.subscription.intend(first, end, intent)

    def end(self, ranges: Sequence[Range]) -> None:
        """Settle records that have left, or that can't leave."""
        effects = Effects()
        for first, end in ranges:
            if not self.subscription.is_dead(first, end):
                self.subscription.dead_letter(first, end, DeadReason.EXPIRED)
            effects = effects.plus(self.subscription.dead_lettered(first, end))
        self.follow(effects)
        self.log.flush_or_keep()


class DueRecords(TransferSource):
    """The records of a timing log that are due."""

    _queue: ScheduledQueue

    def __init__(self, queue: ScheduledQueue, numbers: Numbers) -> None:
        super().__init__(queue, numbers)
        self._taken: list[tuple[int, int]] = []
        self._dues: dict[int, int] = {}
        """The times of the records of the step, by offset, as they were published."""

    def waiting(self, records_max: int) -> Sequence[Range]:
        """See `TransferSource.waiting`."""
        self._taken = self._queue.take_due(records_max)
        found: list[Range] = []
        for _, offset in self._taken:
            if found and found[-1][1] == offset:
                found[-1] = found[-1][0], offset + 1
            else:
                found.append((offset, offset + 1))
        return found

    def put_back(self) -> None:
        """Let records wait again that were taken and did not come into the step."""
        self._queue.wait_again(self._taken)

    def arranged(self, records: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
        """See `TransferSource.arranged`: by time."""
        return sorted(records, key=lambda row: (self._dues[row[0]], row[0]))

    def intend(self, ranges: Sequence[Range], intent: Intent) -> None:
        """See `TransferSource.intend`."""
        self._queue.begin_step(ranges, intent)

    def rewritten(self, offset: int, record: Record) -> Record:
        """See `TransferSource.rewritten`. A record has no time any more once it has come."""
        self._dues[offset] = record.due_ms
        return replace(record, due_ms=0)

    def settle(self, ranges: Sequence[Range]) -> None:
        """See `TransferSource.settle`."""
        self._queue.end(ranges)


def _times_of(batch: RecordBatch) -> tuple[list[int], list[int]]:
    """The times of a batch's records, and their offsets. Raises BatchMalformed."""
    # A separate view: decoded columns must not stay with a batch that an engine keeps in memory.
    batch = RecordBatch(batch.message)
    dues = batch.dues_ms or ()
    offsets = [batch.offset(index) for index in compress(range(batch.count), dues)]
    return [due_ms for due_ms in dues if due_ms], offsets
