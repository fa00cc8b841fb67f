"""Copying dead records to the dead-letter topic, once each, whatever crashes.

Law: intent durable, then copy committed, then settled. After a crash between the last two, the target is read from the
place that the intent names, and what is there already is not copied again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from linn.core.batch_builder import build_from_records
from linn.core.dead_letter import DeadLetterTarget, DeadRange
from linn.core.env import Env
from linn.core.errors import BatchError
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


async def copy_dead_letters(dispatch: SharedDispatch, target: Partition | None, env: Env) -> None:
    """Deal with the first dead range of a queue's partition; without a target it is dropped.

    Raises StorageError: the target or the state log can't be written; nothing was settled.
    Cancellation: as a crash; it will be gone on with.
    """
    dead = dispatch.subscription.dead()[0]
    dead = replace(dead, end=min(dead.end, dead.first + RECORDS_AT_ONCE))
    if target is not None:
        place = await _intend(dispatch, dead, target)
        done = await _copied_before(dispatch.partition, dead, target, place) if dead.target is not None else None
        try:
            await _copy(dispatch, dead, target, env, done or OffsetRanges())
        except BatchError as error:
            source = dispatch.partition.id
            about = {"partition": str(source), "topic": source.topic, "count": dead.end - dead.first}
            text = "%(partition)s: %(count)d records can't be decoded and are dropped: %(error)s"
            logger.error(text, about | log_fields(error))
    dispatch.dead_lettered(dead.first, dead.end)


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
            for index in range(batch.count):
                labels = dict(batch.pair(index).labels)
                if labels.get(TOPIC) == source.id.topic and labels.get(PARTITION) == source.id.index:
                    copied = labels.get(OFFSET)
                    if isinstance(copied, int) and dead.first <= copied < dead.end:
                        done.add(copied, copied + 1)
            offset = batch.end_offset
    return done


async def _copy(dispatch: SharedDispatch, dead: DeadRange, target: Partition, env: Env, done: OffsetRanges) -> None:
    records: list[Record] = []
    offset = max(dead.first, dispatch.partition.start_offset)
    while offset < dead.end:
        for batch in await dispatch.partition.read_range(offset, dead.end, _READ_BYTES):
            for index in range(batch.count):
                at = batch.base_offset + index
                if at not in done:
                    record = batch.record(index)
                    labels = _labels(dispatch.partition, dead, at, env.clock.now_ms(), record.labels)
                    records.append(replace(record, labels=labels))
            offset = batch.end_offset
    if records:
        copy = build_from_records(records, base_id=int.from_bytes(env.rng.bytes(16)))
        await target.wait_committed(target.append(copy) + copy.count)


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
