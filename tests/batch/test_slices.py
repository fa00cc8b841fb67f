"""Any part of a batch is the same part of the list that it was made from."""

from __future__ import annotations

import tracemalloc

import pytest
from any_records import contents, stored_batches
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from linn.core.batch import builder as batch_builder
from linn.core.batch.batch import BatchLimits, Codec, RecordBatch
from linn.core.batch.builder import body_slice, build_from_records, slice_batch, take_batch
from linn.core.batch.record import Record

Stored = tuple[RecordBatch, list[str]]


def _any_range(data: st.DataObject, count: int) -> tuple[int, int]:
    first = data.draw(st.integers(0, count - 1))
    return first, data.draw(st.integers(first + 1, count))


@settings(max_examples=200, deadline=None)
@given(stored_batches(), st.data())
def test_any_slice_and_any_slice_of_it_equals_the_lists_slice(stored: Stored, data: st.DataObject) -> None:
    part, rest = stored
    base_offset = part.base_offset
    for _ in range(3):
        first, last = _any_range(data, len(rest))
        part = slice_batch(part, base_offset + first, base_offset + last)
        rest, base_offset = rest[first:last], base_offset + first
        assert contents(part) == rest
        assert (part.base_offset, part.end_offset) == (base_offset, base_offset + len(rest))
        assert (part.append_time_ms, part.durable_offset, part.leader_epoch) == (stored[0].append_time_ms, 3, 4)
        part.check_stored()
        part.verify(BatchLimits())


@settings(max_examples=200, deadline=None)
@given(stored_batches(), st.integers(1, 9), st.data())
def test_taking_in_steps_gives_the_same_as_taking_at_once(stored: Stored, step: int, data: st.DataObject) -> None:
    batch, whole = stored
    indexes = sorted(data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_builder, "STEP_RECORDS", step)
        part = take_batch(batch, indexes)
    assert contents(part) == [whole[index] for index in indexes]
    part.verify(BatchLimits())
    assert bytes(part.message) == bytes(take_batch(batch, indexes).message)


@settings(max_examples=100, deadline=None)
@given(stored_batches(), st.data())
def test_the_bodies_of_any_range_match_what_readers_get(stored: Stored, data: st.DataObject) -> None:
    batch, whole = stored
    first, last = _any_range(data, len(whole))
    part = body_slice(batch, first, last)
    for index in range(last - first):
        assert part.key(index) == batch.key(first + index)
        assert part.value(index) == batch.value(first + index)
        assert part.headers(index) == batch.headers(first + index)


@settings(max_examples=200, deadline=None)
@given(stored_batches(), st.data())
def test_any_records_taken_equal_the_items_picked_from_the_list(stored: Stored, data: st.DataObject) -> None:
    batch, expected = stored
    before = bytes(batch.message)
    indexes = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1)))
    part = take_batch(batch, indexes)
    assert contents(part) == [expected[index] for index in indexes]
    part.verify(BatchLimits())
    assert bytes(part.message[16:48]) == bytes(32)
    part.stamp(1, 2)
    assert batch.message == before


@settings(max_examples=50, deadline=None)
@given(stored_batches(), st.data())
def test_a_part_knows_its_own_first_and_greatest_timestamp(stored: Stored, data: st.DataObject) -> None:
    assume(len(stored[1]) > 1)
    base = stored[0].base_offset
    part = slice_batch(stored[0], *[base + index for index in _any_range(data, len(stored[1]) - 1)])
    times = [record.timestamp_ms for record in part.records()]
    assert (part.first_timestamp_ms, part.max_timestamp_ms) == (times[0], max(times))


def test_a_slice_is_not_compressed_and_no_larger_than_what_it_was_cut_from() -> None:
    whole = build_from_records([Record(value=bytes(100), key=b"k") for _ in range(100)], base_id=0, codec=Codec.ZSTD)
    part = slice_batch(whole, 10, 90)
    assert part.codec == Codec.NONE
    assert part.size < whole.body_bytes + 200


def test_slices_of_many_sizes_keep_no_memory() -> None:
    batch = build_from_records([Record(value=b"")] * 50_000, base_id=0)
    slice_batch(batch, 1, 50_000)
    tracemalloc.start()
    for first in range(1, 41):
        slice_batch(batch, first, 50_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
