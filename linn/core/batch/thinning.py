"""Thinning of a stored batch: only the records that are needed stay, and their offsets never move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from linn.core.batch.batch import CONTROL, OFFSET_SPAN_MAX, SCATTERED, TRANSACTIONAL, Format, RecordBatch
from linn.core.batch.builder import pick_steps, widen_batch
from linn.core.batch.steps import Steps


def can_be_thinned(batch: RecordBatch) -> bool:
    """Whether a batch is linn's own, and belongs to no transaction, of which a log has to know each batch."""
    return batch.format == Format.NATIVE and not batch.attributes & (CONTROL | TRANSACTIONAL)


def thin_steps(
    batch: RecordBatch, needed: Sequence[tuple[int, int]], begin: int, end: int | None = None
) -> Steps[RecordBatch | None]:
    """The records of a stored batch at needed offsets, as a batch that covers the offsets from `begin` to `end`, or to
    its last record.

    None: none of them is needed. A batch of which all is needed may be returned as it is. Another one has no producer,
    because its numbers would belong to records that are gone.

    Raises BatchMalformed.
    """
    indexes = list(chain.from_iterable([range(batch.index_at(first), batch.index_at(stop)) for first, stop in needed]))
    if not indexes:
        return None
    covers = range(begin, batch.offset(indexes[-1]) + 1 if end is None else end)
    if covers == range(batch.base_offset, batch.end_offset) and len(indexes) == batch.count:
        return batch
    assert len(covers) <= OFFSET_SPAN_MAX, "a segment covers fewer offsets"
    if len(indexes) == batch.count:
        thin = widen_batch(batch, covers)
    else:
        thin = yield from pick_steps(batch, indexes, covers)
    if thin.producer_id or thin.attributes & SCATTERED:
        thin.number(0, 0, 0, thin.attributes & ~SCATTERED)
    return thin
