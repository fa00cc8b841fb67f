"""Copying of dead records to the dead-letter topic, exactly one copy each, across crashes.

Law: the intent is committed, then the copy, then the record is settled. After a crash between the last two, or where
another broker leads the queue then, the target is read from the intent's offset, which is not above its watermark, and
records found there are not copied again.

A step takes many ranges: a consumer that rejects every other record makes a range of each. Their intents are one record
of the state log and name the same target. An interruption at any point leaves each range before or after one of the
three stages, so that the law holds for each range alone; they are settled in turns for that reason.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import LabelValue, Record
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import BatchError, FormatUnknown, MessageInvalid
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.uncommitted import UncommittedView
from linn.core.queue.dead_letter import (
    ATTEMPTS,
    ERROR,
    LABELS,
    OFFSET,
    PARTITION,
    REASON,
    SUBSCRIPTION,
    TIME_MS,
    TOPIC,
    DeadLetterTarget,
    DeadRange,
)
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.partition_queue import PartitionQueue

logger = logging.getLogger("linn.queue")

RECORDS_AT_ONCE = 100
"""Records of one step: they share a commit of their intents, which are made in a millisecond, and one
of their copies.
"""
RECORDS_IN_A_TURN = 25
"""Records that are read or copied without a pause, in less than a millisecond: a round trip is several turns."""
RANGES_IN_A_TURN = 32
"""Ranges that are settled without a pause, in about the same time, even among a million others."""
_READ_BYTES = 1 << 20

AppendCopy = Callable[[Partition, RecordBatch], int]


class CopyTarget(Protocol):
    """A partition of a dead-letter topic, here or at another broker. Each method raises LinnErrors of the target."""

    index: int

    async def place(self) -> int:
        """The offset before which no copy to come can be, whatever a power loss takes."""

    async def settled_start(self) -> int:
        """Wait until all that is stored is committed; returns the first offset that can be read."""

    async def read(self, offset: int) -> tuple[Sequence[RecordBatch], int]:
        """Read committed batches from an offset on, also of open transactions; and the offset after them."""

    async def store(self, batch: RecordBatch) -> None:
        """Store a batch, if the topic has room."""

    async def confirm(self) -> None:
        """Wait until all stored batches are committed."""


class LocalTarget:
    """A partition at this broker."""

    def __init__(self, partition: Partition, append: AppendCopy) -> None:
        """`append` stores a batch in the partition, if the topic has room."""
        self.index = partition.id.index
        self._partition = partition
        self._append = append
        self._ends: dict[Mark, int] = {}
        """A mark for each leadership of the target: a later one may have other records at the same offsets."""

    async def place(self) -> int:
        """See `CopyTarget.place`."""
        return place_of(self._partition)

    async def settled_start(self) -> int:
        """See `CopyTarget.settled_start`."""
        await self._partition.committed.wait(self._partition.log.bounds()[1])
        return self._partition.start_offset

    async def read(self, offset: int) -> tuple[Sequence[RecordBatch], int]:
        """See `CopyTarget.read`."""
        # Copies may lie behind an open transaction, or the last offset be a marker.
        batches = await UncommittedView(self._partition).read(offset, _READ_BYTES)
        return batches, batches[-1].end_offset if batches else offset

    async def store(self, batch: RecordBatch) -> None:
        """See `CopyTarget.store`."""
        self._append(self._partition, batch)
        self._ends[self._partition.committed] = batch.end_offset

    async def confirm(self) -> None:
        """See `CopyTarget.confirm`."""
        ends, self._ends = self._ends, {}
        for mark, end in ends.items():
            await mark.wait(end)


def place_of(partition: Partition) -> int:
    """The place of copies to come in a partition of this broker."""
    # Not the end: a power loss takes what is not durable, and another leader of the target what is not committed; the
    # copies would be stored before this place.
    return min(partition.log.durable(), partition.high_watermark)


async def copy_dead_letters(partition_queue: PartitionQueue, targets: Mapping[int, CopyTarget], env: Env) -> None:
    """Copy the lowest dead records of a queue's partition, some at least; without a target they are dropped.

    `targets`: the partitions of the dead-letter topic. A target intended by an earlier try is kept, even if the topic
    has grown since.

    Raises StorageError, TopicFull, PeerError: the target or the state log can't be written; nothing was settled.
    NotLeader: so it is, and the copies may be there.
    Cancellation: like a crash; copying is continued later.
    """
    found = partition_queue.subscription.lowest_dead(RECORDS_AT_ONCE)
    if not targets:
        await _settle(partition_queue, found)
        return
    dead, index = _step(found), partition_queue.partition.id.index % len(targets)
    meant = dead[0].target
    target = targets[meant.partition if meant is not None and meant.partition in targets else index]
    place = await _intend(partition_queue, dead, target)
    done = await _copied_before(partition_queue, dead, target, place) if dead[0].target is not None else None
    behind = await _copy(partition_queue, dead, target, env, done or OffsetRanges())
    # More of the last one may be of a batch that can't be decoded.
    whole = next(each.end for each in found if each.first == dead[-1].first)
    dead[-1] = replace(dead[-1], end=min(max(behind, dead[-1].end), whole))
    await _settle(partition_queue, dead)


def _step(found: Sequence[DeadRange]) -> list[DeadRange]:
    """The dead records to copy together: all have the intent of the lowest, or none, for copies are looked up from
    there.
    """
    left, dead = RECORDS_AT_ONCE, list[DeadRange]()
    for each in found:
        if left > 0 and each.target == found[0].target:
            dead.append(replace(each, end=min(each.end, each.first + left)))
            left -= dead[-1].end - each.first
    return dead


async def _intend(partition_queue: PartitionQueue, dead: Sequence[DeadRange], target: CopyTarget) -> DeadLetterTarget:
    place = dead[0].target
    if place is None or place.partition != target.index:
        place = DeadLetterTarget(target.index, await target.place())
        for each in dead:
            partition_queue.subscription.dead_letter_intended(each.first, each.end, place)
    # Also of an earlier one: a full disk may have kept it from the log.
    await partition_queue.log.until_committed()
    return place


async def _copied_before(
    partition_queue: PartitionQueue, dead: Sequence[DeadRange], target: CopyTarget, place: DeadLetterTarget
) -> OffsetRanges:
    """The offsets of `dead`, and perhaps of others, that the target has already."""
    done = OffsetRanges()
    # A try that failed may have stored copies just before.
    offset = max(place.end, await target.settled_start())
    while True:
        batches, behind = await target.read(offset)
        for batch in batches:
            # Anybody may publish there; what can't be read is no copy of ours.
            with contextlib.suppress(BatchError):
                await _note_copies(batch, partition_queue, range(dead[0].first, dead[-1].end), done)
        if behind <= offset:
            return done
        offset = behind


async def _note_copies(batch: RecordBatch, partition_queue: PartitionQueue, wanted: range, done: OffsetRanges) -> None:
    source = partition_queue.partition.id
    origin = source.topic, source.index, partition_queue.name
    for index in range(batch.count):
        labels = dict(batch.pair(index).labels)
        if (labels.get(TOPIC), labels.get(PARTITION), labels.get(SUBSCRIPTION, "")) == origin:
            copied = labels.get(OFFSET)
            if isinstance(copied, int) and copied in wanted:
                done.add(copied, copied + 1)
        if index % RECORDS_IN_A_TURN == 0:
            await trio.lowlevel.checkpoint()


async def _copy(
    partition_queue: PartitionQueue,
    dead: Sequence[DeadRange],
    target: CopyTarget,
    env: Env,
    done: OffsetRanges,
) -> int:
    """Copy the records that can be decoded; returns the offset after the last record that was copied or is
    unreadable.
    """
    source, end = partition_queue.partition, dead[-1].end
    left = [(offset, each) for each in dead for offset in range(each.first, each.end) if offset not in done]
    records: list[Record] = []
    behind, size = end, 0
    while left:
        offset = left[0][0]
        if offset < source.start_offset:
            partition_queue.skip_to_start()  # Now: records that are settled here are not counted as missed later.
            left = [entry for entry in left if entry[0] >= source.start_offset]
            continue
        try:
            (batch, *_) = await source.read_range(offset, end, 1)
            copies = [
                replace(
                    record,
                    labels=_labels(partition_queue, each, at, env.clock.now_ms(), record.labels),
                    delay_ms=0,
                    ttl_ms=0,
                )
                for at, each in left[:RECORDS_IN_A_TURN]
                if at < batch.end_offset
                for record in [batch.record(batch.index_at(at))]
            ]
        except FormatUnknown:
            raise  # They wait for the plugin that reads them.
        except BatchError as error:
            behind = (await source.batch_at(offset)).end_offset
            about = {"partition": str(source.id), "topic": source.id.topic, "count": behind - offset}
            text = "%(partition)s: %(count)d records can't be decoded and are dropped: %(error)s"
            logger.error(text, about | log_fields(error))
            left = [entry for entry in left if entry[0] >= behind]
            continue
        left = left[len(copies) :]
        records, size = records + copies, size + batch.size
        if size >= _READ_BYTES:
            await _store(partition_queue, records, target, env)
            records, size = [], 0
        await trio.lowlevel.checkpoint()
    await _store(partition_queue, records, target, env)
    return behind


async def _settle(partition_queue: PartitionQueue, dead: Sequence[DeadRange]) -> None:
    """Settle copied or dropped records, in turns."""
    for at in range(0, len(dead), RANGES_IN_A_TURN):
        for first, end in _spans(partition_queue, dead[at : at + RANGES_IN_A_TURN]):
            partition_queue.dead_lettered(first, end)
        await trio.lowlevel.checkpoint()


def _spans(partition_queue: PartitionQueue, dead: Sequence[DeadRange]) -> list[Range]:
    """The ranges to settle, as one range if no record below or between has died meanwhile: settling a range costs as
    much as there are ranges above it.
    """
    ranges, end = [(each.first, each.end) for each in dead], dead[-1].end
    lowest = partition_queue.subscription.lowest_dead(sum(each.end - each.first for each in dead))
    is_alone = ranges == [(each.first, min(each.end, end)) for each in lowest]
    return [(ranges[0][0], end)] if is_alone else ranges


async def _store(partition_queue: PartitionQueue, records: list[Record], target: CopyTarget, env: Env) -> None:
    for at in range(0, len(records), RECORDS_IN_A_TURN):
        for batch in _batches(records[at : at + RECORDS_IN_A_TURN], env):
            partition_queue.log.check_led()  # The next leader looks for copies, and then makes its own.
            await target.store(batch)
        if at + RECORDS_IN_A_TURN < len(records):
            await trio.lowlevel.checkpoint()
    await target.confirm()


def _batches(records: list[Record], env: Env) -> list[RecordBatch]:
    """The copies as one batch, or as several if their added labels make it too large."""
    base_id = int.from_bytes(env.rng.bytes(16))
    try:
        return [build_from_records(records, base_id=base_id)]
    except MessageInvalid:
        if len(records) > 1:
            half = len(records) // 2
            return _batches(records[:half], env) + _batches(records[half:], env)
    # Its own labels leave no room for ours.
    ours = {name: value for name, value in (records[0].labels or {}).items() if name in LABELS}
    return [build_from_records([replace(records[0], labels=ours)], base_id=base_id)]


def _labels(
    partition_queue: PartitionQueue, dead: DeadRange, offset: int, now_ms: int, labels: Mapping[str, LabelValue]
) -> dict[str, LabelValue]:
    source, cause = partition_queue.partition.id, partition_queue.subscription.cause_of(offset)
    return {
        **{name: value for name, value in labels.items() if name not in (SUBSCRIPTION, ERROR)},
        REASON: dead.reason.label,
        TOPIC: source.topic,
        PARTITION: source.index,
        OFFSET: offset,
        ATTEMPTS: dead.attempts,
        TIME_MS: now_ms,
        **({SUBSCRIPTION: partition_queue.name} if partition_queue.name else {}),
        **({ERROR: cause} if cause else {}),
    }
