"""Copying dead records to the dead-letter topic, once each, whatever crashes.

Law: intent durable, then copy committed, then settled. After a crash between the last two, the target is read from the
place that the intent names, and what is there already is not copied again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace

from linn.core.batch import RecordBatch
from linn.core.batch_builder import build_from_records
from linn.core.dead_letter import DeadLetterTarget, DeadRange
from linn.core.env import Env
from linn.core.errors import BatchError, MessageInvalid
from linn.core.log_fields import log_fields
from linn.core.offset_ranges import OffsetRanges
from linn.core.partition import Partition
from linn.core.record import LabelValue, Record
from linn.core.shared_dispatch import SharedDispatch

logger = logging.getLogger("linn.queue")

RECORDS_AT_ONCE = 1_000
_READ_BYTES = 1 << 20

REASON = "linn.dead.reason"
TOPIC = "linn.dead.topic"
PARTITION = "linn.dead.partition"
OFFSET = "linn.dead.offset"
ATTEMPTS = "linn.dead.attempts"
TIME_MS = "linn.dead.time_ms"
_OURS = (REASON, TOPIC, PARTITION, OFFSET, ATTEMPTS, TIME_MS)


async def copy_dead_letters(dispatch: SharedDispatch, target: Partition | None, env: Env) -> None:
    """Deal with the first dead range of a queue's partition; without a target it is dropped.

    Raises StorageError: the target or the state log can't be written; nothing was settled.
    Cancellation: as a crash; it will be gone on with.
    """
    found = dispatch.subscription.dead()[0]
    dead = replace(found, end=min(found.end, found.first + RECORDS_AT_ONCE))
    end = dead.end
    if target is not None:
        place = await _intend(dispatch, dead, target)
        done = await _copied_before(dispatch.partition, dead, target, place) if dead.target is not None else None
        end = await _copy(dispatch, dead, target, env, done or OffsetRanges())
    dispatch.dead_lettered(dead.first, min(max(end, dead.end), found.end))


async def _intend(dispatch: SharedDispatch, dead: DeadRange, target: Partition) -> DeadLetterTarget:
    if dead.target is not None and dead.target.partition == target.id.index:
        return dead.target
    place = DeadLetterTarget(target.id.index, target.log.bounds()[1])
    dispatch.subscription.dead_letter_intended(dead.first, dead.end, place)
    position = dispatch.flush()
    if dispatch.state is not None:
        await dispatch.state.partition.wait_committed(position)
    return place


async def _copied_before(
    source: Partition, dead: DeadRange, target: Partition, place: DeadLetterTarget
) -> OffsetRanges:
    """The offsets of `dead` that the target holds already."""
    done = OffsetRanges()
    offset = max(place.end, target.start_offset)
    while offset < target.high_watermark:
        for batch in await target.read(offset, _READ_BYTES):
            # Anybody may publish there; what can't be read is no copy of ours.
            with contextlib.suppress(BatchError):
                _note_copies(batch, source, dead, done)
            offset = batch.end_offset
    return done


def _note_copies(batch: RecordBatch, source: Partition, dead: DeadRange, done: OffsetRanges) -> None:
    for index in range(batch.count):
        labels = dict(batch.pair(index).labels)
        if labels.get(TOPIC) == source.id.topic and labels.get(PARTITION) == source.id.index:
            copied = labels.get(OFFSET)
            if isinstance(copied, int) and dead.first <= copied < dead.end:
                done.add(copied, copied + 1)


async def _copy(dispatch: SharedDispatch, dead: DeadRange, target: Partition, env: Env, done: OffsetRanges) -> int:
    """Copy what can be decoded; returns the offset behind the last record that was copied or can't be."""
    source = dispatch.partition
    records: list[Record] = []
    offset, size = max(dead.first, source.start_offset), 0
    while offset < dead.end:
        try:
            (batch, *_) = await source.read_range(offset, dead.end, 1)
            copies = [
                replace(record, labels=_labels(source, dead, at, env.clock.now_ms(), record.labels))
                for at, record in enumerate(batch.records(), batch.base_offset)
                if at not in done
            ]
        except BatchError as error:
            first, offset = offset, (await source.batch_at(offset)).end_offset
            about = {"partition": str(source.id), "topic": source.id.topic, "count": offset - first}
            text = "%(partition)s: %(count)d records can't be decoded and are dropped: %(error)s"
            logger.error(text, about | log_fields(error))
            continue
        records, offset, size = records + copies, batch.end_offset, size + batch.size
        if size >= _READ_BYTES:
            await _store(records, target, env)
            records, size = [], 0
    await _store(records, target, env)
    return offset


async def _store(records: list[Record], target: Partition, env: Env) -> None:
    end = 0
    for batch in _batches(records, env) if records else ():
        end = target.append(batch) + batch.count
    await target.wait_committed(end)


def _batches(records: list[Record], env: Env) -> list[RecordBatch]:
    """The copies as one batch, or as several where the labels that they were given make it too large for one."""
    base_id = int.from_bytes(env.rng.bytes(16))
    try:
        return [build_from_records(records, base_id=base_id)]
    except MessageInvalid:
        if len(records) > 1:
            half = len(records) // 2
            return _batches(records[:half], env) + _batches(records[half:], env)
    # Its own labels leave no room for ours.
    ours = {name: value for name, value in (records[0].labels or {}).items() if name in _OURS}
    return [build_from_records([replace(records[0], labels=ours)], base_id=base_id)]


def _labels(
    source: Partition, dead: DeadRange, offset: int, now_ms: int, labels: Mapping[str, LabelValue]
) -> dict[str, LabelValue]:
    return {
        **labels,
        REASON: dead.reason.label,
        TOPIC: source.id.topic,
        PARTITION: source.id.index,
        OFFSET: offset,
        ATTEMPTS: dead.attempts,
        TIME_MS: now_ms,
    }
