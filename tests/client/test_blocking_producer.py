from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linn
from linn.client.produce.open_batch import RECORD_BYTES, OpenBatch
from linn.core.batch.key_hash import partition_of
from linn.core.errors.tree import (
    LimitExceeded,
    MessageInvalid,
    MessageTooLarge,
    RequestTimeout,
    TopicUnknown,
    Unroutable,
)


def read(client: linn.sync.Client, topic: str, count: int) -> list[linn.sync.Message]:
    with client.consumer(topic) as reader:
        return [next(reader) for _ in range(count)]


def test_every_property_of_a_message_arrives_whichever_way_it_is_published(broker: str, name: str) -> None:
    properties = {
        "key": b"k",
        "routing_key": "a.b",
        "labels": {"origin": "JFK", "late": True, "distance": 1, "speed": 1.0},
        "headers": (("h", b"1"), ("h", None)),
        "id": UUID(int=7),
        "timestamp_ms": 1,
        "priority": 9,
        "delay_ms": 0,
        "ttl_ms": 0,
    }
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, kind="stream")
        with client.producer(name) as producer:
            producer.publish(b"waited for", **properties)  # type: ignore[arg-type]
            producer.publish_nowait(b"plain")
            producer.publish_nowait(b"not waited for", **properties)  # type: ignore[arg-type]
            producer.publish_nowait(memoryview(b"a view"))  # type: ignore[arg-type]
            producer.publish_nowait(None, key=b"gone")
            producer.flush()
            many = producer.publish_many([b"a", None], keys=[b"1", None], labels=[{"n": 1}, {"n": True}])
        one, plain, other, view, tombstone, a, b = [message.record() for message in read(client, name, 7)]
    for record in (one, other):
        assert {field: getattr(record, field) for field in properties} == properties
    assert [record.value for record in (plain, other, view, tombstone)] == [
        b"plain", b"not waited for", b"a view", None,
    ]  # fmt: skip
    assert (a.value, a.key, b.value, type(b.labels["n"])) == (b"a", b"1", None, bool)
    assert (many.count, many.partitions) == (2, {0: (5, 6)})


@pytest.mark.parametrize("properties", [{}, {"key": b"k"}], ids=["plain", "with a key"])
def test_a_wrong_message_fails_its_own_call_and_no_other(broker: str, name: str, properties: dict[str, bytes]) -> None:
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, kind="stream")
        with client.producer(name) as producer:
            producer.publish_nowait(b"before", **properties)  # type: ignore[arg-type]
            with pytest.raises(MessageTooLarge):
                producer.publish_nowait(b"x" * (64 << 10) + b"x", **properties)  # type: ignore[arg-type]
            with pytest.raises(MessageInvalid):
                producer.publish_nowait("text", **properties)  # type: ignore[arg-type]
            with pytest.raises(MessageInvalid):
                producer.publish_nowait(b"", labels={"l": []}, **properties)  # type: ignore[arg-type, dict-item]
            with pytest.raises(MessageTooLarge):
                producer.publish(b"x" * (64 << 10) + b"x", **properties)  # type: ignore[arg-type]
            producer.publish_nowait(b"after", **properties)  # type: ignore[arg-type]
        assert [message.value for message in read(client, name, 2)] == [b"before", b"after"]


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


def test_failures_of_publish_nowait_are_raised_by_flush_and_close(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name)
        producer = client.producer(name)
        client.admin.delete_topic(name)
        producer.publish_nowait(b"1")
        with pytest.raises(TopicUnknown) as caught:
            producer.flush()
        assert "not confirmed: 1 batch with messages of publish_nowait" in caught.value.__notes__[0]
        producer.flush()
        producer.publish_nowait(b"2", key=b"k")
        with pytest.raises(TopicUnknown):
            producer.close()
        producer.close()


def test_mandatory_messages_that_no_binding_takes_are_errors(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client, client.producer(exchange="events") as producer:
        with pytest.raises(Unroutable):
            producer.publish(b"", routing_key=name, mandatory=True)
        with pytest.raises(Unroutable) as caught:
            producer.publish_many([b"", b""], routing_keys=name, mandatory=True)
        assert caught.value.indexes == [0, 1]
        producer.publish_nowait(b"", routing_key=name)
        producer.flush()
        producer.publish_nowait(b"", routing_key=name, mandatory=True)
        with pytest.raises(Unroutable):
            producer.flush()


def test_a_timeout_withdraws_waiting_messages_and_reports_it(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, kind="stream")
        with client.producer(name, linger_ms=60_000) as producer:
            with pytest.raises(RequestTimeout, match=r"publish took longer than 0\.05 s"):
                producer.publish(b"withdrawn", timeout_s=0.05)
            assert producer.publish_many([b"1"], timeout_s=30).count == 1
            producer.flush(timeout_s=30)
        assert [message.value for message in read(client, name, 1)] == [b"1"]


def test_a_key_decides_the_partition(broker: str, name: str) -> None:
    keys = [b"key-%d" % number for number in range(50)]
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, kind="stream", partitions=5)
        with client.producer(name) as producer:
            for key in keys:
                producer.publish_nowait(b"", key=key)
        messages = read(client, name, 50)
    assert {message.key: message.partition for message in messages} == {key: partition_of(key, 5) for key in keys}


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
