"""Transfer: records of a log are published elsewhere and settled here, each exactly once.

A source makes one step at a time. The step is committed in the source's state log as intended, with its records and the
numbers of a producer; it is published with these numbers through the broker's publish pipeline, to any number of
destinations; then it is settled.

Laws:
- A step that was interrupted is published again with the same records and numbers: each destination's table of
  producers knows whether it has them. Records that died since wait for the next step.
- A step's numbers are used for no other step. The epoch is always 0.
- There is one step at a time, so that a destination never forgets one that may be published again.
- A step is settled when every destination has committed it.
- A record that can't be published at all is dropped and counted, so that it does not hold up all others.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import trio

from linn.core.batch.batch import SCATTERED, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import RESERVED_LABELS, Record
from linn.core.env.env import Rng
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import BatchError, FormatUnknown, LinnError, MessageInvalid, Unroutable
from linn.core.log.partition import Partition
from linn.core.log.producers import SEQUENCE_END
from linn.core.queue.dead_letter import DeadRange, Intent
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.partition_queue import PartitionQueue

logger = logging.getLogger("linn.queue")

RECORDS_AT_ONCE = 100
"""Records of one step: they share a commit of their intent, which is made in a millisecond, and one of their copies."""
STEP_BYTES_MAX = 256 << 10
"""Limit of the bytes of one step, unless its only record has more: a topic that is nearly full takes it soon."""
_RECORD_BYTES = 512
"""The size of a record besides its value and its key, labels included, roughly."""
RECORDS_IN_A_TURN = 25
"""Records that are read without a pause, in less than a millisecond."""
RANGES_IN_A_TURN = 32
"""Ranges that are settled without a pause, in about the same time, even among a million others."""
BATCH_BYTES_MAX = 8 << 20
"""Limit of the batches that a step keeps while it reads: they are as large as their partition has them."""
UNREADABLE, TOO_LARGE, REFUSED, UNROUTABLE, CYCLE = "unreadable", "too_large", "refused", "unroutable", "cycle"
DROP_REASONS = UNREADABLE, TOO_LARGE, REFUSED, UNROUTABLE, CYCLE
"""Reasons why a record is dropped."""

Carry = Callable[[RecordBatch], Awaitable[None]]
"""Publishes a step, and returns when it is committed at every destination. Raises LinnError: publish it again later."""


class Step(NamedTuple):
    """A step that was begun: its records, as ranges of offsets, and the numbers that it is published with."""

    ranges: Sequence[Range]
    intent: Intent


class Numbers:
    """The numbers of one source's steps, while this broker leads it.

    A source that begins anew draws another producer, so that no number is used twice even if its state log was lost.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._producer = 0
        self._next = 0

    def take(self, records: int) -> Intent:
        """The numbers of a step of so many records."""
        if not self._producer or self._next + records > SEQUENCE_END:
            self._producer, self._next = 1 + (int.from_bytes(self._rng.bytes(8)) >> 2), 0
        intent = Intent(self._next, self._producer)
        self._next += records
        return intent


class TransferSource(ABC):
    """A queue that records leave, for one step."""

    def __init__(self, queue: PartitionQueue, numbers: Numbers) -> None:
        self.partition = queue.partition
        self.numbers = numbers
        self._queue = queue

    def begun(self) -> Step | None:
        """The step that was intended and is not settled; None: there is none."""
        found = self._queue.subscription.intended()
        if not found or found[0].intent is None:
            return None
        return Step(self._noted(found), found[0].intent)

    def _noted(self, found: Sequence[DeadRange]) -> Sequence[Range]:
        """The offsets of the records of the step."""
        return list(OffsetRanges([(dead.first, dead.end) for dead in found]))

    @abstractmethod
    def waiting(self, records_max: int) -> Sequence[Range]:
        """The records that are next, in the order in which they are read: at least one, unless none waits."""

    def arranged(self, records: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
        """The records of a step with their offsets, in the order in which they are published, each time the same."""
        return records

    @abstractmethod
    def intend(self, ranges: Sequence[Range], intent: Intent) -> None:
        """Record that a step begins."""

    async def until_committed(self) -> None:
        """Wait until all that was recorded is committed. Raises StorageError, NotLeader."""
        await self._queue.log.until_committed()

    def check_led(self) -> None:
        """Check that this broker still leads the log. Raises NotLeader."""
        self._queue.log.check_led()

    @abstractmethod
    def rewritten(self, offset: int, record: Record) -> Record | None:
        """The record to publish in place of a stored one; None: it goes in a cycle, and is dropped."""

    def dropped(self, records: int, reason: str) -> None:
        """Count records that can't be published."""
        self._queue.dead_letters.dropped[reason] += records

    @abstractmethod
    def settle(self, ranges: Sequence[Range]) -> None:
        """Settle records of the step, or records that are dropped."""

    def skip_to_start(self) -> None:
        """Forget records that the log no longer has."""
        self._queue.skip_to_start()


class StepLimits(NamedTuple):
    """The limits of a step that begins."""

    batch_bytes: int
    """Size of a published batch."""
    bytes: int = STEP_BYTES_MAX
    """Rough size of the step, unless its only record is larger."""
    records: int = RECORDS_AT_ONCE


async def transfer_step(source: TransferSource, carry: Carry, limits: StepLimits) -> None:
    """Finish the step that was begun, or make the next one.

    Raises LinnError: the state log can't be written, or a destination does not take the step now; call it again later.
    Cancellation: like a crash; the step is finished later.
    """
    step = source.begun()
    reading = _Reading(source)
    if step is not None:
        await reading.read(step.ranges, None)
        batch, ranges, intent = _build(source.arranged(reading.records)), step.ranges, step.intent
    else:
        await reading.read(source.waiting(limits.records), min(limits.bytes, limits.batch_bytes // 2))
        batch, taken = _built_to_fit(source, reading, limits.batch_bytes)
        if batch is None or min(taken) < source.partition.start_offset:  # Retention has dropped some meanwhile.
            await settle_in_turns(source, list(reading.lost))
            source.skip_to_start()
            return
        singles = [(offset, offset + 1) for offset in sorted(taken)]
        ranges, intent = list(OffsetRanges(singles)), source.numbers.take(len(taken))
        source.intend(ranges, intent)
        await settle_in_turns(source, list(reading.lost))
    # Also an earlier one: a full disk may have kept it from the log.
    await source.until_committed()
    if batch is not None:
        batch.number(-intent.producer, 0, intent.sequence, SCATTERED)
        source.check_led()
        await carry(batch)
    await settle_in_turns(source, ranges)


class _Reading:
    """Records read for a step."""

    def __init__(self, source: TransferSource) -> None:
        self.records: list[tuple[int, Record]] = []
        """The records to publish, by offset."""
        self.lost = OffsetRanges()
        """Offsets of records that are dropped."""
        self._source = source
        self._cycles = 0
        self._batches: list[RecordBatch] = []
        """Batches that were read, by offset: each is read and decoded once, though its records may be far apart."""
        self._batch_bytes = 0

    async def read(self, ranges: Sequence[Range], bytes_max: int | None) -> None:
        """Read records of these ranges in their order, in turns, until they have so many bytes.

        Raises StorageError; FormatUnknown: they wait for the plugin that reads them.
        """
        source, size, turn = self._source, 0, RECORDS_IN_A_TURN
        left = [offset for first, end in ranges for offset in range(first, end)]
        left.reverse()
        while left and (bytes_max is None or size < bytes_max):
            if left[-1] < source.partition.start_offset:
                source.skip_to_start()  # Now: records that are settled here are not counted as missed later.
                while left and left[-1] < source.partition.start_offset:
                    left.pop()
                continue
            try:
                batch = await self._batch_at(left[-1])
                size += self._take(batch, left, None if bytes_max is None else bytes_max - size)
            except FormatUnknown:
                raise
            except BatchError as error:
                await self._drop_batch(left, error)
            if len(self.records) >= turn:
                turn = len(self.records) + RECORDS_IN_A_TURN
                await trio.lowlevel.checkpoint()
        if self._cycles:
            source.dropped(self._cycles, CYCLE)
            why = Unroutable("they come round through dead-letter targets, and no consumer has rejected them")
            log_dropped(source.partition, self._cycles, "go in a cycle", why)

    async def _batch_at(self, offset: int) -> RecordBatch:
        """The whole batch that has an offset, in linn's own format. Raises StorageError, BatchError."""
        batches, partition = self._batches, self._source.partition
        place = bisect_right(batches, offset, key=_base_offset)
        if place and offset < batches[place - 1].end_offset:
            return batches[place - 1]
        stored, *_ = await partition.read_whole(offset, 1)
        assert stored.base_offset <= offset, "a record that is not settled is in the log"
        batch = partition.native(stored)
        self._batch_bytes += batch.size + batch.body_bytes
        if self._batch_bytes > BATCH_BYTES_MAX:
            batches.clear()
            self._batch_bytes, place = batch.size + batch.body_bytes, 0
        batches.insert(place, batch)
        return batch

    def _take(self, batch: RecordBatch, left: list[int], bytes_max: int | None) -> int:
        """Take the next records of a batch; returns their size. Raises BatchError: nothing was taken."""
        size, found, ends = 0, list[tuple[int, Record]](), len(left)
        for offset in reversed(left[-RECORDS_IN_A_TURN:]):
            if not batch.base_offset <= offset < batch.end_offset:
                break
            record = batch.record(batch.index_at(offset))
            more = _RECORD_BYTES + len(record.value or b"") + len(record.key or b"")
            # A large record makes a step of its own.
            if bytes_max is not None and (self.records or found) and size + more > bytes_max:
                size = bytes_max
                break
            size, ends = size + more, ends - 1
            found.append((offset, record))
        del left[ends:]
        for offset, record in found:
            copy = self._source.rewritten(offset, record)
            if copy is None:
                self.lost.add(offset, offset + 1)
                self._cycles += 1
            else:
                self.records.append((offset, copy))
        return size

    async def _drop_batch(self, left: list[int], error: BatchError) -> None:
        """Drop the records of a batch that can't be decoded. Raises StorageError."""
        source = self._source
        batch, count = await source.partition.batch_at(left[-1]), 0
        while left and batch.base_offset <= left[-1] < batch.end_offset:
            self.lost.add(left[-1], left.pop() + 1)
            count += 1
        source.dropped(count, UNREADABLE)
        log_dropped(source.partition, count, "can't be decoded", error)


_base_offset = attrgetter("base_offset")


def log_dropped(partition: Partition, count: int, why: str, error: LinnError) -> None:
    """Log records that are lost to their target."""
    about = {"partition": str(partition.id), "topic": partition.id.topic, "count": count, "why": why}
    logger.error("%(partition)s: %(count)d records %(why)s and are dropped: %(error)s", about | log_fields(error))


def _build(records: Sequence[tuple[int, Record]]) -> RecordBatch | None:
    """The batch of a step, as it was built at first; None: its records are gone. Raises MessageInvalid."""
    try:
        return build_from_records([record for _, record in records], base_id=0) if records else None
    except MessageInvalid:
        if len(records) > 1:
            raise
        return build_from_records([_with_our_labels(records[0][1])], base_id=0)


def _built_to_fit(
    source: TransferSource, reading: _Reading, batch_bytes_max: int
) -> tuple[RecordBatch | None, Sequence[int]]:
    """The batch of the first records that fit into one, and their offsets; None: there are none."""
    records = reading.records
    while records:
        try:
            batch = _build(arranged := source.arranged(records))
            if batch is not None and batch.size <= batch_bytes_max:
                return batch, [offset for offset, _ in arranged]
            error: LinnError = MessageInvalid(f"the copy has more than {batch_bytes_max:,} bytes")
        except MessageInvalid as invalid:
            error = invalid
        if len(records) == 1:
            offset = records[0][0]
            reading.lost.add(offset, offset + 1)
            source.dropped(1, TOO_LARGE)
            log_dropped(source.partition, 1, "fit into no batch", error)
        records = records[: len(records) // 2]
    return None, ()


def _with_our_labels(record: Record) -> Record:
    """The record without its own labels, which leave no room for the broker's."""
    labels = {name: value for name, value in record.labels.items() if name.startswith(RESERVED_LABELS)}
    return replace(record, labels=labels)


async def settle_in_turns(source: TransferSource, ranges: Sequence[Range]) -> None:
    """Settle records, with pauses for other tasks."""
    for at in range(0, len(ranges), RANGES_IN_A_TURN):
        source.settle(ranges[at : at + RANGES_IN_A_TURN])
        await trio.lowlevel.checkpoint()
