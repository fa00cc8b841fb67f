from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linn
from linn.client.produce.open_batch import RECORD_BYTES, OpenBatch
from linn.core.errors.tree import (
    LimitExceeded,
    RequestTimeout,
)
from linn.sync import Client


def read(client: Client, topic: str, count: int) -> list[linn.sync.Message]:
    with client.consumer(topic) as reader:
        return [next(reader) for _ in range(count)]


def test_the_buffer_is_bounded_and_flush_makes_room(broker: str, name: str) -> None:
    refused = 0
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, kind="stream")
        with client.producer(name, buffer_bytes_max=256 << 10) as producer:
            for number in range(2_000):
                value = b"%d" % number + bytes(1_000)
                try:
                    producer.publish_nowait(value)
                except LimitExceeded:
                    refused += 1
                    producer.flush()
                    producer.publish_nowait(value)
        stored = [int((message.value or b"").rstrip(b"\0")) for message in read(client, name, 2_000)]
    assert stored == list(range(2_000))
    assert refused >= 2


def test_a_timeout_withdraws_waiting_messages_and_reports_it(client: Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream")
    with client.producer(name, linger_ms=60_000) as producer:
        with pytest.raises(RequestTimeout, match=r"publish took longer than 0\.05 s"):
            producer.publish(b"withdrawn", timeout_s=0.05)
        assert producer.publish_many([b"1"], timeout_s=30).count == 1
        producer.flush(timeout_s=30)
    assert [message.value for message in read(client, name, 1)] == [b"1"]


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=60), bytes_max=st.integers(1, 120))
def test_values_added_together_make_the_batches_that_values_added_one_by_one_make(
    sizes: list[int], bytes_max: int
) -> None:
    values = [bytes(size) for size in sizes]
    expected: list[tuple[int, int]] = []
    count = size = 0
    for value in values:
        if count and len(value) >= bytes_max:
            expected.append((count, size))
            count = size = 0
        count, size = count + 1, size + len(value) + RECORD_BYTES
        if size >= bytes_max:
            expected.append((count, size))
            count = size = 0
    if count:
        expected.append((count, size))
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    made: list[tuple[int, int]] = []
    first = 0
    while first < len(values):
        batch = OpenBatch(0, 0)
        first = batch.extend(values, ends, first, bytes_max)
        made.append((len(batch.values), batch.size))
    assert made == expected


def test_a_batch_that_has_messages_takes_what_fits_behind_them() -> None:
    batch = OpenBatch(0, 0)
    assert batch.extend([b"x" * 10] * 3, [10, 20, 30], 0, 20) == 2
    assert batch.extend([b"x" * 10] * 3, [10, 20, 30], 2, 1_000) == 3
    assert (len(batch.values), batch.size) == (3, 3 * (10 + RECORD_BYTES))
