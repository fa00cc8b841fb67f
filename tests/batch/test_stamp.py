"""Stamping changes only what the sealed CRC does not cover, and every byte of a stored batch is covered by a CRC."""

from __future__ import annotations

import pytest
from any_records import contents, stored_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch.batch import BatchLimits, Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import BatchCorrupt, BatchMalformed

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
PLAIN = [Record(value=b"a"), Record(value=b"bc")]
RICH = [
    Record(value=b"v", key=b"k", routing_key="a.b", labels={"x": True, "y": "z"}, headers=(("h", b"1"), ("h", None))),
    Record(value=None, routing_key="c", timestamp_ms=-5, priority=3, delay_ms=4, ttl_ms=5),
]
BATCHES = [(PLAIN, Codec.NONE), (RICH, Codec.NONE), (RICH, Codec.ZSTD)]
MASKS = (0x01, 0x10, 0x80, 0xFF)


@settings(max_examples=100, deadline=None)
@given(stored_batches(), INT64, INT64, INT64, INT32)
def test_stamping_in_place_keeps_the_seal(
    stored: tuple[RecordBatch, list[str]], base_offset: int, append_time_ms: int, durable_offset: int, epoch: int
) -> None:
    frame = bytearray(stored[0].message)
    RecordBatch(frame).stamp(base_offset, append_time_ms, durable_offset, epoch)
    batch = RecordBatch(bytes(frame))
    batch.check_stored()
    batch.verify(BatchLimits())
    assert (batch.base_offset, batch.append_time_ms) == (base_offset, append_time_ms)
    assert (batch.durable_offset, batch.leader_epoch) == (durable_offset, epoch)
    assert contents(batch) == stored[1]
    assert frame[48:] == stored[0].message[48:]


def test_a_batch_that_no_leader_stamped_is_not_a_stored_one() -> None:
    with pytest.raises(BatchCorrupt, match="stamp"):
        build_from_records(PLAIN, base_id=1).check_stored()


@pytest.mark.parametrize(("records", "codec"), BATCHES)
def test_any_damaged_byte_of_a_stored_batch_is_found(records: list[Record], codec: Codec) -> None:
    batch = build_from_records(records, base_id=1 << 100, codec=codec)
    batch.stamp(1_000, 2_000, 900, 7)
    for place in range(batch.size):
        for mask in MASKS:
            damaged = bytearray(batch.message)
            damaged[place] ^= mask
            with pytest.raises((BatchMalformed, BatchCorrupt)):
                RecordBatch(damaged).check_stored()


@pytest.mark.parametrize(("records", "codec"), BATCHES)
def test_any_damaged_byte_on_the_way_to_the_leader_is_found_or_stamped_over(
    records: list[Record], codec: Codec
) -> None:
    batch = build_from_records(records, base_id=1 << 100, codec=codec)
    for place in range(batch.size):
        damaged = bytearray(batch.message)
        damaged[place] ^= MASKS[place % len(MASKS)]
        if 16 <= place < 48:
            RecordBatch(damaged).verify(BatchLimits())
            assert contents(RecordBatch(damaged)) == contents(batch)
        else:
            with pytest.raises((BatchMalformed, BatchCorrupt)):
                RecordBatch(damaged).verify(BatchLimits())


@pytest.mark.parametrize(("records", "codec"), BATCHES)
def test_a_batch_cut_short_or_grown_is_refused(records: list[Record], codec: Codec) -> None:
    whole = bytes(build_from_records(records, base_id=1, codec=codec).message)
    for size in range(len(whole)):
        with pytest.raises(BatchMalformed):
            RecordBatch(whole[:size])
    for size in (1, 7, 8, 64):
        with pytest.raises(BatchMalformed):
            RecordBatch(whole + bytes(size))
