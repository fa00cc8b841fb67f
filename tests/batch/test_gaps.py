"""Batches with gaps: each record keeps its offset, whatever is picked or cut, and a batch that lies is refused."""

from __future__ import annotations

import pytest
from any_records import contents, stored_batches
from forgery import OFFSET_DELTAS, forged, int32s
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch import builder as batch_builder
from linn.core.batch.batch import OFFSET_SPAN_MAX, BatchLimits, RecordBatch
from linn.core.batch.builder import build_from_records, pick_batch, slice_batch, take_batch
from linn.core.batch.record import Record
from linn.core.errors.tree import BatchMalformed

AtOffsets = dict[int, str]


@st.composite
def gap_batches(draw: st.DrawFn) -> tuple[RecordBatch, AtOffsets]:
    """A stored batch that may have gaps anywhere, and its records by offset."""
    whole, expected = draw(stored_batches())
    indexes = sorted(draw(st.sets(st.integers(0, len(expected) - 1), min_size=1)))
    before, behind = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    base = whole.base_offset
    first = draw(st.integers(max(0, base - before), base + indexes[0]))
    covers = range(first, draw(st.integers(base + indexes[-1] + 1, whole.end_offset + behind)))
    return pick_batch(whole, indexes, covers), {base + index: expected[index] for index in indexes}


def at_offsets(batch: RecordBatch) -> AtOffsets:
    """The records of a batch by offset, as a reader of its bytes finds them."""
    read = RecordBatch(bytes(batch.message))
    read.check_stored()
    found = {read.offset(index): content for index, content in enumerate(contents(batch))}
    assert len(found) == batch.count
    for index, offset in enumerate(found):
        assert (read.index_at(offset), read.index_at(offset + 1)) == (index, index + 1)
    assert (read.index_at(read.base_offset), read.index_at(read.end_offset)) == (0, read.count)
    return found


@settings(max_examples=300, deadline=None)
@given(gap_batches(), st.data())
def test_any_slice_and_any_slice_of_it_has_the_records_of_its_offsets(
    stored: tuple[RecordBatch, AtOffsets], data: st.DataObject
) -> None:
    part, expected = stored
    assert at_offsets(part) == expected
    for _ in range(3):
        some = data.draw(st.sampled_from(sorted(expected)))
        first = data.draw(st.integers(part.base_offset, some))
        end = data.draw(st.integers(some + 1, part.end_offset))
        part = slice_batch(part, first, end)
        expected = {offset: content for offset, content in expected.items() if first <= offset < end}
        assert (part.base_offset, part.end_offset) == (first, end)
        assert at_offsets(part) == expected
        assert (part.offset_deltas is None) == (end - first == len(expected))


@settings(max_examples=300, deadline=None)
@given(gap_batches(), st.integers(1, 9), st.data())
def test_any_records_that_are_picked_keep_their_offsets(
    stored: tuple[RecordBatch, AtOffsets], step: int, data: st.DataObject
) -> None:
    batch, expected = stored
    indexes = sorted(data.draw(st.sets(st.integers(0, batch.count - 1), min_size=1)))
    offsets = [batch.offset(index) for index in indexes]
    covers = range(data.draw(st.integers(0, 9)) and offsets[0], offsets[-1] + data.draw(st.integers(1, 9)))
    covers = range(max(covers.start, offsets[0] - 99), covers.stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_builder, "STEP_RECORDS", step)
        part = pick_batch(batch, indexes, covers)
    assert (part.base_offset, part.end_offset) == (covers.start, covers.stop)
    assert at_offsets(part) == {offset: expected[offset] for offset in offsets}


@settings(max_examples=100, deadline=None)
@given(gap_batches(), st.data())
def test_what_an_exchange_takes_of_a_batch_with_gaps_has_none(
    stored: tuple[RecordBatch, AtOffsets], data: st.DataObject
) -> None:
    batch, expected = stored
    indexes = sorted(data.draw(st.sets(st.integers(0, batch.count - 1), min_size=1)))
    part = take_batch(batch, indexes)
    assert contents(part) == [list(expected.values())[index] for index in indexes]
    part.verify(BatchLimits())


# --- batches that lie ---


def three() -> RecordBatch:
    """A stored batch of three records."""
    batch = build_from_records([Record(value=b"a"), Record(value=b"b"), Record(value=b"c")], base_id=1)
    batch.stamp(100, 1)
    return batch


LIES = [
    pytest.param(9, None, id="no offsets"),
    pytest.param(9, int32s(0, 1), id="too few"),
    pytest.param(9, int32s(0, 1, 2, 3), id="too many"),
    pytest.param(9, int32s(0, 0, 1), id="twice"),
    pytest.param(9, int32s(0, 2, 1), id="back"),
    pytest.param(9, int32s(0, 1, 9), id="out of the span"),
    pytest.param(9, int32s(0, 1, -1), id="below 0"),
    pytest.param(0, int32s(0, 1, 2), id="span 0"),
    pytest.param(2, int32s(0, 1, 2), id="span too small"),
    pytest.param(3, int32s(0, 1, 2), id="no gaps"),
    pytest.param(OFFSET_SPAN_MAX + 1, int32s(0, 1, 9), id="span too large"),
    pytest.param(2**32 - 1, int32s(0, 1, 9), id="span of all 32 bits"),
]


@pytest.mark.parametrize(("span", "deltas"), LIES)
def test_offsets_that_do_not_fit_are_refused_by_readers(span: int, deltas: bytes | None) -> None:
    batch = forged(three(), {OFFSET_DELTAS: deltas}, offset_span=span)
    for read in (batch.body, lambda: batch.record(0), batch.records):
        with pytest.raises(BatchMalformed, match=r"offsets|column"):
            read()
    if span != batch.count:
        for place in (lambda: batch.offset(0), lambda: batch.index_at(101)):
            with pytest.raises(BatchMalformed, match=r"offsets|column"):
                place()


@pytest.mark.parametrize(("span", "deltas"), [*LIES, (9, int32s(0, 4, 8))])
def test_a_broker_takes_no_gaps_from_a_producer(span: int, deltas: bytes | None) -> None:
    with pytest.raises(BatchMalformed, match="offsets"):
        forged(three(), {OFFSET_DELTAS: deltas}, offset_span=span).verify(BatchLimits())


def test_the_largest_span_is_read() -> None:
    batch = forged(three(), {OFFSET_DELTAS: int32s(0, 5, OFFSET_SPAN_MAX - 1)}, offset_span=OFFSET_SPAN_MAX)
    batch.stamp(100, 1)
    assert batch.offset(2) == 100 + OFFSET_SPAN_MAX - 1 == batch.end_offset - 1
    assert slice_batch(batch, 101, batch.end_offset).count == 2
