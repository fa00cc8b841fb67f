"""Any records become a batch, its bytes, and the same records again."""

from __future__ import annotations

import re

import pytest
from any_records import BASE_IDS, CODECS, contents, published, record_lists
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch.batch import BatchLimits, Codec, RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch, build_from_records, build_single
from linn.core.batch.record import Record
from linn.core.batch.routes import Pair
from linn.core.errors.tree import MessageInvalid


@settings(max_examples=300, deadline=None)
@given(record_lists(), BASE_IDS, CODECS)
def test_any_records_come_back_from_a_batchs_bytes(records: list[Record], base_id: int, codec: Codec) -> None:
    batch = build_from_records(records, base_id=base_id, codec=codec)
    batch.verify(BatchLimits())
    assert contents(batch) == published(records, base_id)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100), st.integers(-(1 << 63), (1 << 63) - 1), BASE_IDS)
def test_a_single_value_gives_the_same_bytes_either_way(value: bytes, timestamp_ms: int, base_id: int) -> None:
    sooner = build_single(value, timestamp_ms, base_id)
    assert sooner.message == build_batch(BatchColumns([value], timestamp_ms, base_id)).message
    sooner.verify(BatchLimits())


@settings(max_examples=50, deadline=None)
@given(record_lists())
def test_a_batch_holds_each_distinct_pair_once_and_tells_which_records_have_it(records: list[Record]) -> None:
    batch = RecordBatch(build_from_records(records, base_id=0).message)
    pairs, of_record = batch.pairs(), batch.route_index or [0] * len(records)
    assert sorted(set(of_record)) == list(range(len(pairs)))
    assert [pairs[number].routing_key for number in of_record] == [record.routing_key for record in records]


def test_the_cache_of_encoded_routes_tells_true_from_1_and_zero_from_minus_zero() -> None:
    lookalikes = [True, 1, 1.0, False, 0, 0.0, -0.0]
    for value in lookalikes * 2:
        batch = build_from_records([Record(labels={"x": value})], base_id=0)
        assert repr(batch.labels(0)["x"]) == repr(value)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (0, 300), (7, 300), (7, 10_000)])
def test_values_of_one_size_come_back_as_those_of_many_sizes_do(size: int, count: int) -> None:
    values = [bytes([index % 251]) * size for index in range(count)]
    for wanted in (values, [*values, b"longer"]):
        batch = build_batch(BatchColumns(wanted, 1, 1))
        batch.verify(BatchLimits())
        assert batch.body().values.to_list() == wanted


def test_the_body_of_a_large_batch_is_compressed() -> None:
    records = [Record(value=b"the same over and over") for _ in range(1_000)]
    packed = build_from_records(records, base_id=1, codec=Codec.ZSTD)
    assert packed.size < build_from_records(records, base_id=1).size / 4
    assert contents(packed) == published(records, 1)


def test_columns_that_hold_only_defaults_are_absent() -> None:
    batch = build_from_records([Record(value=b"a"), Record(value=b"b")], base_id=1)
    assert list(batch.raw_fields[1:]) == [None] * 9
    assert (batch.body().keys, batch.body().headers, batch.body().timestamps_ms) == (None, None, None)


@pytest.mark.parametrize(
    "record",
    [
        Record(value="text"),  # type: ignore[arg-type]
        Record(value=0),  # type: ignore[arg-type]
        Record(value=memoryview(b"abcdefgh").cast("I")),  # type: ignore[arg-type]
        Record(key="text"),  # type: ignore[arg-type]
        Record(routing_key=b"bytes"),  # type: ignore[arg-type]
        Record(routing_key="\ud800"),
        Record(routing_key="é" * 2_049),
        Record(labels={"x": b"bytes"}),  # type: ignore[dict-item]
        Record(labels={"x": []}),  # type: ignore[dict-item]
        Record(labels={"x": 2**63}),
        Record(labels={1: "x", "a": "y"}),  # type: ignore[dict-item]
        Record(labels={1: "x"}),  # type: ignore[dict-item]
        Record(labels=["x"]),  # type: ignore[arg-type]
        Record(labels={str(n): n for n in range(257)}),
        Record(headers=((b"name", b"value"),)),  # type: ignore[arg-type]
        Record(headers=(("name", "value"),)),  # type: ignore[arg-type]
        Record(headers=(("name", b"value", 3),)),  # type: ignore[arg-type]
        Record(headers=(("\ud800", b""),)),
        Record(timestamp_ms=2**63),
        Record(timestamp_ms=1.5),  # type: ignore[arg-type]
        Record(priority=256),
        Record(delay_ms=-1),
        Record(ttl_ms=2**32),
        Record(due_ms=2**63),
    ],
    ids=lambda record: re.sub(r" at 0x\w+", "", repr(record)),
)
@pytest.mark.parametrize("beside", [[], [Record(value=None, key=b"k", timestamp_ms=7)]], ids=["alone", "beside"])
def test_values_that_can_not_be_encoded_are_refused_by_name(record: Record, beside: list[Record]) -> None:
    with pytest.raises(MessageInvalid):
        build_from_records([*beside, record], base_id=0)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["keys", "headers", "timestamps_ms", "priorities", "delays_ms", "ttls_ms", "dues_ms", "ids"]))
def test_a_column_of_another_length_than_the_values_is_refused(name: str) -> None:
    with pytest.raises(MessageInvalid, match="column"):
        build_batch(BatchColumns(values=[b"a", b"b"], timestamp_ms=0, base_id=0, **{name: [0]}))  # type: ignore[arg-type]


def test_more_distinct_pairs_than_a_uint16_can_tell_apart_are_refused() -> None:
    pairs = tuple(Pair(str(number), ()) for number in range(65_536))
    columns = BatchColumns([b""] * 65_536, 0, 0, pairs=pairs, pair_index=[0] * 65_536)
    with pytest.raises(MessageInvalid, match="65535"):
        build_batch(columns)


def test_65535_distinct_routing_keys_of_15_bytes_fit_one_batch() -> None:
    records = [Record(routing_key=f"{number:015}") for number in range(65_535)]
    batch = build_from_records(records, base_id=0)
    assert [pair.routing_key for pair in batch.pairs()] == [record.routing_key for record in records]


def test_routing_keys_and_labels_over_two_mebibytes_are_refused() -> None:
    with pytest.raises(MessageInvalid, match="2097152"):
        build_from_records([Record(routing_key=f"{number:04000}") for number in range(600)], base_id=0)
