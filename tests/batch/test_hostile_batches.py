"""Batches made to deceive: refused by name, within bounded time and memory, by brokers and by readers."""

from __future__ import annotations

import struct
from collections.abc import Callable

import forgery
import pytest
import zstandard
from any_records import record_lists
from bounds import bounded
from forgery import forged, int32s, with_body
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch.batch import BatchLimits, Codec, RecordBatch, seal
from linn.core.batch.builder import build_from_records, slice_batch, take_batch
from linn.core.batch.record import Record
from linn.core.errors.tree import BatchError, BatchMalformed, BatchTooLarge, LinnError

LIMITS = BatchLimits(batch_bytes_max=1 << 20, records_max=10_000)
RICH = [
    Record(value=b"v%d" % i, key=b"k", routing_key=f"r{i % 2}", headers=(("h", b"1"),), timestamp_ms=i, priority=i)
    for i in range(4)
]


def rich(codec: Codec = Codec.NONE) -> RecordBatch:
    return build_from_records(RICH, base_id=1, codec=codec)


def refused(batch: RecordBatch, text: str, error: type[BatchError] = BatchMalformed) -> None:
    with bounded(), pytest.raises(error, match=text):
        batch.verify(LIMITS)


def verify_and_route(batch: RecordBatch) -> None:
    batch.verify(LIMITS)
    batch.pairs()


def verify_and_read(batch: RecordBatch) -> None:
    """Do with a batch all that brokers, routing and readers do."""
    batch.verify(LIMITS)
    batch.records()
    batch.body().values.to_list()
    assert len(batch.route_index or ()) in (0, batch.count)
    if batch.count > 2:
        slice_batch(batch, batch.base_offset + 1, batch.end_offset - 1).records()
        take_batch(batch, [0, batch.count - 1]).records()


# --- what a broker refuses on entry, at batch cost ---


@pytest.mark.parametrize("count", [0, 3, 5, 10_001, 2**31, 2**32 - 1])
@pytest.mark.parametrize("codec", Codec)
def test_a_count_that_is_not_the_number_of_records_is_refused(count: int, codec: Codec) -> None:
    refused(forged(rich(codec), count=count, offset_span=count), "records")


@pytest.mark.parametrize("place", [forgery.ROUTE_INDEX, forgery.KEY_HASHES, forgery.PRIORITIES, forgery.IDS])
@pytest.mark.parametrize("data", [b"", bytes(3), bytes(4 * 16 + 1)])
def test_a_column_of_another_width_is_refused_by_brokers_and_readers(place: int, data: bytes) -> None:
    batch = forged(rich(), {place: data})
    refused(batch, f"column {place}")
    with pytest.raises(BatchMalformed, match=f"column {place}"):
        _ = (batch.route_index, batch.key_hashes, batch.priorities, batch.id(0))


@pytest.mark.parametrize("pair_count", [0, 1, 65_535])
def test_a_number_of_pairs_that_does_not_fit_is_refused_at_the_latest_when_routing(pair_count: int) -> None:
    batch = forged(rich(), pair_count=pair_count)
    with pytest.raises(BatchMalformed):
        verify_and_route(batch)
    with pytest.raises(BatchMalformed):
        batch.pair(0)


def test_an_index_of_a_missing_pair_is_refused_each_time_it_is_read() -> None:
    batch = forged(rich(), {forgery.ROUTE_INDEX: struct.pack("<4H", 0, 1, 2, 0)})
    for read in (batch.pairs, batch.pairs, lambda: batch.pair(2), lambda: batch.record(0)):
        with pytest.raises(BatchMalformed, match="pair"):
            read()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({forgery.VALUE_OFFSETS: None}, "no values"),
        ({forgery.VALUE_OFFSETS: b""}, "values"),
        ({forgery.VALUE_OFFSETS: bytes(19)}, "values"),
        ({forgery.VALUE_OFFSETS: int32s(0, 2, 4, 6)}, "values"),
        ({forgery.VALUE_OFFSETS: int32s(0, 2, 4, 6, 9)}, "values"),
        ({forgery.VALUE_OFFSETS: int32s(0, 2, 4, 6, -1)}, "values"),
        ({forgery.VALUE_OFFSETS: int32s(1, 2, 4, 6, 8)}, "values"),
        ({forgery.VALUES: None}, "values"),
        ({forgery.VALUE_VALIDITY: b""}, "validity"),
        ({forgery.KEY_OFFSETS: int32s(0, 1, 2, 3, 5)}, "keys"),
        ({forgery.TIMESTAMPS: bytes(31)}, "timestamps"),
        ({forgery.HEADER_OFFSETS: bytes(19)}, "headers"),
        ({forgery.HEADER_OFFSETS: int32s(1, 1, 2, 3, 4)}, "headers"),
        ({forgery.HEADER_OFFSETS: int32s(0, 1, 2, 3, 5)}, "header names"),
        ({forgery.HEADER_OFFSETS: int32s(0, 1, 2, 3, -1), forgery.HEADER_NAME_OFFSETS: b""}, "header names"),
        ({forgery.HEADER_OFFSETS: int32s(0, 1, 2, 3, -2)}, "header names"),
        ({forgery.HEADER_NAME_OFFSETS: None}, "without names"),
        ({forgery.HEADER_VALUE_OFFSETS: None}, "without names or values"),
        ({forgery.HEADER_VALIDITY: bytes(2)}, "validity"),
    ],
    ids=repr,
)
def test_a_body_whose_columns_do_not_fit_is_refused(columns: dict[int, bytes | None], text: str) -> None:
    refused(with_body(rich(), columns), text)


def test_a_batch_over_a_limit_is_refused_before_anything_is_decompressed() -> None:
    refused(build_from_records([Record(value=bytes(1 << 20))], base_id=0), "bytes", BatchTooLarge)
    refused(build_from_records([Record(value=bytes(1 << 20))], base_id=0, codec=Codec.ZSTD), "body", BatchTooLarge)


@pytest.mark.parametrize("body_bytes", [0, 1, 263, 1 << 20])
@pytest.mark.parametrize("codec", Codec)
def test_a_body_of_another_size_than_declared_is_refused(body_bytes: int, codec: Codec) -> None:
    refused(forged(rich(codec), body_bytes=body_bytes), "size")


def zstd_body(data: bytes, **numbers: int) -> RecordBatch:
    return forged(rich(Codec.ZSTD), {forgery.BODY: data}, **numbers)


def a_bomb(said: int) -> bytes:
    """A frame that says `said` bytes and holds 100 MB."""
    compressor = zstandard.ZstdCompressor(write_content_size=True).compressobj(size=100_000_000)
    frame = bytearray(compressor.compress(bytes(100_000_000)) + compressor.flush())
    assert struct.unpack_from("<I", frame, 6)[0] == 100_000_000, "behind magic, descriptor and window"
    struct.pack_into("<I", frame, 6, said)
    return bytes(frame)


def test_a_zstd_bomb_with_its_true_size_is_refused_on_entry() -> None:
    bomb = a_bomb(100_000_000)
    refused(zstd_body(bomb, body_bytes=100_000_000), "body", BatchTooLarge)
    refused(zstd_body(bomb, body_bytes=1_000), "size")


def test_a_zstd_bomb_with_a_false_size_is_refused_by_readers_within_the_declared_size() -> None:
    batch = zstd_body(a_bomb(100_000), body_bytes=100_000)
    with bounded(), pytest.raises(BatchMalformed, match="decompressed"):
        verify_and_read(batch)


def test_a_zstd_body_without_a_content_size_or_with_a_huge_window_is_refused() -> None:
    plain = bytes(rich().raw_fields[forgery.BODY] or b"")
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    refused(zstd_body(silent), "size")
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    unsized = stream.compress(plain) + stream.flush()
    descriptor_and_window = bytes([0x80, unsized[5]])  # The content size follows in four bytes.
    greedy = unsized[:4] + descriptor_and_window + struct.pack("<I", len(plain)) + unsized[6:]
    assert zstandard.get_frame_parameters(greedy).window_size == 1 << 27
    refused(zstd_body(greedy, body_bytes=len(plain)), "window")


@pytest.mark.parametrize("data", [b"", b"not zstd at all", struct.pack("<II", 0x184D2A50, 4) + b"skip"], ids=repr)
def test_a_body_that_is_not_zstd_is_refused(data: bytes) -> None:
    batch = zstd_body(data, body_bytes=4)
    with pytest.raises(BatchMalformed):
        verify_and_read(batch)


def test_bytes_behind_the_zstd_frame_are_refused_when_read() -> None:
    frame = bytes(rich(Codec.ZSTD).raw_fields[forgery.BODY] or b"")
    with pytest.raises(BatchMalformed, match="decompressed"):
        zstd_body(frame + b"more").records()


def test_an_unknown_codec_is_refused_and_an_unknown_format_is_carried_but_not_read() -> None:
    refused(forged(rich(), codec=2), "codec")
    with pytest.raises(BatchMalformed, match="codec"):
        forged(rich(), codec=2).records()
    body = b"another protocol's batch"
    refused(forged(rich(), {forgery.BODY: body}, format=7), "size")
    foreign = forged(rich(), {forgery.BODY: body}, format=7, body_bytes=len(body))
    foreign.verify(LIMITS)
    with pytest.raises(BatchMalformed, match="format 7"):
        foreign.body()


def test_fields_that_overlap_to_more_than_the_message_are_refused() -> None:
    message = bytearray(build_from_records([Record(value=bytes(1_000))], base_id=0).message)
    message = bytearray(forged(RecordBatch(message), {forgery.ROUTES: b""}).message)
    body_pointer_at = 16 + 112
    (pointer,) = struct.unpack_from("<Q", message, body_pointer_at)
    struct.pack_into("<Q", message, body_pointer_at + 8, pointer - (1 << 2))
    seal(message)
    with pytest.raises(BatchMalformed, match="out of the message"):
        assert RecordBatch(message).raw_fields


# --- what is left to those who read ---


@pytest.mark.parametrize("middle", [(6, 4), (2**31 - 1, 4), (-1, 4), (-(2**31), 4), (9, 9)])
@pytest.mark.parametrize("column", [forgery.VALUE_OFFSETS, forgery.KEY_OFFSETS, forgery.HEADER_NAME_OFFSETS])
@pytest.mark.parametrize(
    "read",
    [
        lambda batch: batch.record(0),
        lambda batch: batch.body().values.to_list(),
        lambda batch: slice_batch(batch, 2, 4),
        lambda batch: take_batch(batch, [0, 2]),
    ],
    ids=["record", "to_list", "slice", "take"],
)
def test_offsets_that_decrease_are_refused_before_anything_is_read(
    middle: tuple[int, int], column: int, read: Callable[[RecordBatch], object]
) -> None:
    sizes = {forgery.VALUE_OFFSETS: 2, forgery.KEY_OFFSETS: 1, forgery.HEADER_NAME_OFFSETS: 1}
    size = sizes[column]
    batch = with_body(rich(), {column: int32s(0, size, *middle, 4 * size)})
    batch.verify(LIMITS)
    for _ in range(2):
        with pytest.raises(BatchMalformed, match="decrease"):
            read(batch)


def test_offsets_that_go_back_and_forth_do_not_multiply_the_bytes_that_routing_copies() -> None:
    records = [Record(value=b""), *[Record(value=bytes(250))] * 1_999]
    batch = build_from_records(records, base_id=0)
    end = 1_999 * 250
    bomb = with_body(batch, {forgery.VALUE_OFFSETS: int32s(*[0, end] * 1_000, end)})
    bomb.verify(LIMITS)
    with bounded(peak_bytes=4 << 20), pytest.raises(BatchMalformed, match="decrease"):
        take_batch(bomb, range(0, 2_000, 3))


def test_a_header_name_that_is_not_utf8_is_refused_to_its_reader_and_moved_as_it_is() -> None:
    batch = with_body(rich(), {forgery.HEADER_NAMES: b"hh\xffh"})
    batch.verify(LIMITS)
    for part, index in ((batch, 2), (slice_batch(batch, 1, 4), 1), (take_batch(batch, [0, 2, 3]), 1)):
        assert part.headers(0) == (("h", b"1"),)
        with pytest.raises(BatchMalformed, match="UTF-8"):
            part.record(index)


@settings(max_examples=400, deadline=None)
@given(record_lists(), st.sampled_from(Codec), st.data())
def test_readers_of_any_bytes_with_a_right_crc_get_records_or_a_linn_error(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    message = bytearray(build_from_records(records, base_id=0, codec=codec).message)
    for _ in range(data.draw(st.integers(1, 4))):
        word = data.draw(st.integers(52 // 4, len(message) // 4 - 1))
        number = data.draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1))
        struct.pack_into("<I", message, 4 * word, number)
    seal(message)
    try:
        verify_and_read(RecordBatch(message))
    except LinnError:
        return


@settings(max_examples=300, deadline=None)
@given(record_lists(), st.data())
def test_readers_of_any_body_get_records_or_a_linn_error(records: list[Record], data: st.DataObject) -> None:
    batch = build_from_records(records, base_id=0)
    column = data.draw(st.integers(0, 12))
    offsets = st.lists(st.integers(-2, 20), max_size=16).map(lambda numbers: int32s(0, *numbers))
    changed = with_body(batch, {column: data.draw(st.none() | st.binary(max_size=16) | offsets)})
    try:
        verify_and_read(changed)
    except LinnError:
        return


def test_a_message_of_several_segments_or_with_its_root_elsewhere_is_refused() -> None:
    whole = bytes(rich().message)
    for place, number in ((0, 1), (0, 2**32 - 1), (4, 0), (4, 2**32 - 1), (8, 4), (8, 0xFFFFFFFC), (8, 2), (8, 1)):
        message = bytearray(whole)
        struct.pack_into("<I", message, place, number)
        with pytest.raises(BatchMalformed):
            RecordBatch(message)
