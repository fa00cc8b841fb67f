"""Kafka's record batches: compared with those of kafka-python, and served by a broker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from linn_kafka_format.plugin import NUMBER
from linn_kafka_format.record_batch import HEADERS_MAX, KafkaRecordBatches
from linn_kafka_format.varint import read_varint, write_varint

import linn
from linn.api import (
    BatchMalformed,
    BodyColumns,
    FetchRequest,
    Principal,
    PublishRequest,
    Record,
    RecordBatch,
    WaitDeadline,
    build_from_records,
    wrap_body,
)
from linn.testing.deterministic import run_simulation
from linn.testing.formats import BYTES_MAX, FormatConformance, FormatHarness
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv

PLUGIN = "linn_kafka_format.plugin"
GZIP = DefaultRecordBatch.CODEC_GZIP


def written_by_kafka(records: Sequence[Record], compression: int = 0, **producer: Any) -> bytes:
    """A record batch as a Kafka producer sends it."""
    numbers = {"is_transactional": False, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    builder = DefaultRecordBatchBuilder(2, compression, batch_size=1 << 30, **(numbers | producer))
    for offset, record in enumerate(records):
        headers = [(name, value) for name, value in record.headers]
        assert builder.append(offset, record.timestamp_ms, record.key, record.value, headers) is not None
    return bytes(builder.build())


def read_by_kafka(body: bytes) -> list[tuple[Any, ...]]:
    """(offset, value, key, headers, timestamp) of each record, as a Kafka consumer reads them."""
    batch = DefaultRecordBatch(body)
    assert batch.validate_crc()
    return [(r.offset, r.value, r.key, tuple(map(tuple, r.headers)), r.timestamp) for r in batch]


def read_here(body: bytes, count: int) -> list[tuple[Any, ...]]:
    codec = KafkaRecordBatches()
    codec.check(memoryview(body), count, BYTES_MAX)
    found: BodyColumns = codec.to_native(memoryview(body), count, BYTES_MAX)
    none = [None] * count
    return list(zip(found.values, found.keys or none, found.headers or [()] * count, found.timestamps_ms, strict=True))


def expected(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(r.value, r.key, tuple(r.headers), r.timestamp_ms) for r in records]


ORDERS = [
    Record(
        value=None if number % 7 == 3 else b"order %d" % number,
        key=None if number % 4 == 0 else b"customer %d" % (number % 3),
        headers=(("trace", b"t%d" % number), ("none", None), ("ü", b"")) if number % 2 else (),
        timestamp_ms=1_700_000_000_000 + (number * 37) % 100,
    )
    for number in range(30)
]


class TestKafkaFormat(FormatConformance):
    @pytest.fixture
    def harness(self) -> FormatHarness:
        bodies = [(written_by_kafka(ORDERS, compression), len(ORDERS)) for compression in (0, GZIP)]
        large = [Record(value=bytes(500), timestamp_ms=1)] * 100
        return FormatHarness(KafkaRecordBatches, [*bodies, (written_by_kafka(large, GZIP), len(large))])


RECORDS = st.lists(
    st.builds(
        Record,
        value=st.none() | st.binary(max_size=300),
        key=st.none() | st.binary(max_size=20),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4).map(tuple),
        timestamp_ms=st.integers(0, (1 << 50)),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.sampled_from([0, GZIP]))
def test_what_kafka_writes_is_read_here(records: list[Record], compression: int) -> None:
    assert read_here(written_by_kafka(records, compression), len(records)) == expected(records)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.integers(0, 1 << 40))
def test_what_is_written_here_is_read_by_kafka(records: list[Record], offset: int) -> None:
    batch = build_from_records(records, base_id=1)
    batch.stamp(offset, 1)
    body = KafkaRecordBatches().from_native(batch)
    assert read_by_kafka(body) == [(offset + place, *row) for place, row in enumerate(expected(records))]
    assert read_here(body, len(records)) == expected(records)


@settings(max_examples=300, deadline=None)
@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_of_any_size_come_back(number: int) -> None:
    out = bytearray()
    write_varint(out, number)
    assert read_varint(bytes(out), 0) == (number, len(out))


def test_a_number_that_never_ends_is_refused() -> None:
    with pytest.raises(BatchMalformed):
        read_varint(b"\xff" * 20, 0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (written_by_kafka(ORDERS, is_transactional=True, producer_id=5, producer_epoch=1, base_sequence=0), "trans"),
        (written_by_kafka(ORDERS) + written_by_kafka(ORDERS), "one record batch"),
        (b"", "0 bytes"),
        (bytes(100), "version 0"),
    ],
)
def test_what_is_not_served_is_refused_with_its_reason(body: bytes, why: str) -> None:
    with pytest.raises(BatchMalformed, match=why):
        KafkaRecordBatches().check(memoryview(body), len(ORDERS), BYTES_MAX)


def test_a_bomb_is_refused_before_it_is_stored() -> None:
    body = written_by_kafka([Record(value=bytes(50 << 20))], GZIP)
    assert len(body) < 100_000
    for read in (KafkaRecordBatches().check, KafkaRecordBatches().to_native):
        with pytest.raises(BatchMalformed, match="more than 8388608 bytes"):
            read(memoryview(body), 1, BYTES_MAX)


@pytest.mark.parametrize("compression", [0, GZIP])
def test_headers_that_nobody_could_decode_in_time_are_refused_before_they_are_stored(compression: int) -> None:
    many = [Record(value=b"", headers=(("", None),) * HEADERS_MAX), Record(value=b"v" * 100)]
    body = written_by_kafka(many, compression)
    assert read_here(body, 2) == expected(many)
    for wrong in ([*many, many[0]], [Record(value=b"", headers=(("", None),) * 100)] * 400):
        with pytest.raises(BatchMalformed, match="more than 16384 headers"):
            KafkaRecordBatches().check(memoryview(written_by_kafka(wrong, compression)), len(wrong), BYTES_MAX)


# --- in a broker -----------------------------------------------------------------------------------------------------

TOML = """
[topics.jobs]
kind = "queue"
max_deliveries = 1
dead_letter = "failed"

[topics.failed]
kind = "stream"

[topics.events]
kind = "stream"
"""


def kafka_batches(compression: int) -> list[RecordBatch]:
    """ORDERS as three batches, each with a body as a Kafka producer sends it."""
    batches = []
    for first, last in pairwise((0, 11, 12, 30)):
        part = ORDERS[first:last]
        times = [record.timestamp_ms for record in part]
        body = written_by_kafka(part, compression)
        numbers = {"first_timestamp_ms": times[0], "max_timestamp_ms": max(times)}
        batches.append(wrap_body(NUMBER, body, len(part), base_id=first, **numbers))
    return batches


async def publish(broker: Any, topic: str, compression: int) -> None:
    """Publish as a protocol does."""
    for batch in kafka_batches(compression):
        await broker.gateway.session(Principal("127.0.0.1:1")).publish(PublishRequest(topic, [batch]))


def content(message: Any) -> tuple[Any, ...]:
    return message.value, message.key, tuple(message.headers), message.timestamp_ms


@pytest.mark.parametrize("compression", [0, GZIP])
def test_nothing_is_lost_of_a_stream_that_is_read_from_anywhere(compression: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, TOML, PLUGIN) as broker, linn.connect(URL, env=env) as client:
            await publish(broker, "events", compression)
            for start in range(len(ORDERS)):
                async with client.consumer("events", start=start) as consumer:
                    found = [await anext(consumer) for _ in range(len(ORDERS) - start)]
                assert [message.offset for message in found] == list(range(start, len(ORDERS)))
                assert [content(message) for message in found] == expected(ORDERS[start:])

    run_simulation(0, scenario)


@pytest.mark.parametrize("compression", [0, GZIP])
@pytest.mark.parametrize("credit", [1, 4, 100])
def test_nothing_is_lost_of_a_queue_and_its_dead_letters(compression: int, credit: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, TOML, PLUGIN) as broker, linn.connect(URL, env=env) as client:
            await publish(broker, "jobs", compression)
            done, failed = [], []
            async with client.consumer("jobs", prefetch=credit) as consumer:
                for number in range(len(ORDERS)):
                    message = await anext(consumer)
                    if number % 3:
                        done.append(content(message))
                        await message.ack()
                    else:
                        await message.reject()
            async with client.consumer("failed") as consumer:
                failed = [content(await anext(consumer)) for _ in ORDERS[::3]]
            assert done == [row for number, row in enumerate(expected(ORDERS)) if number % 3]
            assert failed == expected(ORDERS[::3])

    run_simulation(0, scenario)


def test_a_reader_of_kafkas_format_gets_what_was_sent_and_what_others_sent_in_it() -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, TOML, PLUGIN) as broker, linn.connect(URL, env=env) as client:
            await publish(broker, "events", GZIP)
            async with client.producer("events") as producer:
                await producer.publish(b"of a client of linn's", key=b"k", headers={"h": b"1"})
            sent = [bytes(batch.raw_fields[0] or b"") for batch in kafka_batches(GZIP)]
            offset, found, session = 0, [], broker.gateway.session(Principal("127.0.0.1:1"))
            while offset <= len(ORDERS):
                fetch = session.fetch(FetchRequest("events", 0, offset, 1 << 20, accepts=[NUMBER]))
                for batch in (await fetch.read(WaitDeadline(0))).batches:
                    assert isinstance(batch, RecordBatch)
                    found.append(bytes(batch.raw_fields[0] or b""))
                    offset = batch.end_offset
            assert found[:-1] == sent
            [(place, value, key, headers, _)] = read_by_kafka(found[-1])
            assert (place, value, key, headers) == (30, b"of a client of linn's", b"k", (("h", b"1"),))

    run_simulation(0, scenario)
