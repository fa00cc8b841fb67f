from __future__ import annotations

from pathlib import Path

import pytest
from linn_redact.redact import Redact
from linn_redact.settings import RedactSettings

import linn
from linn.api import Record, RecordBatch, TopicSettings, build_from_records
from linn.testing.interceptors import InterceptorConformance, InterceptorHarness
from linn.testing.process import BrokerNotReady, BrokerProcess

CARD = r"\b\d{4}(?: ?\d{4}){3}\b"
SETTINGS = RedactSettings(labels=("email",), headers=("authorization",), values=(CARD, "secret"))


def redact(settings: RedactSettings = SETTINGS) -> Redact:
    return Redact("orders", TopicSettings(), settings)


def redacted(*records: Record, settings: RedactSettings = SETTINGS) -> list[Record]:
    batch = redact(settings).intercept("orders", build_from_records(records, base_id=1))
    assert batch is not None
    return batch.records()


ORDERS = [
    Record(
        value=b"%d from 4111 1111 1111 1111, secretly" % number,
        labels={"email": f"{number}@example.com", "total": number},
        headers=(("authorization", b"Bearer x"), ("authorization", None), ("trace", b"t")),
    )
    for number in range(3)
]


class TestRedact(InterceptorConformance):
    @pytest.fixture(params=[SETTINGS, RedactSettings()], ids=["masking", "idle"])
    def harness(self, request: pytest.FixtureRequest) -> InterceptorHarness:
        return InterceptorHarness(lambda: redact(request.param), [build_from_records(ORDERS, base_id=1)])


def test_labels_headers_and_values_are_masked_and_nothing_else() -> None:
    for number, record in enumerate(redacted(*ORDERS)):
        assert record.value == b"%d from ***, ***ly" % number
        assert record.labels == {"email": "***", "total": number}
        assert record.headers == (("authorization", b"***"), ("authorization", None), ("trace", b"t"))


def test_tombstones_and_empty_values_stay() -> None:
    assert [record.value for record in redacted(Record(value=None), Record(value=b""))] == [None, b""]


def test_a_batch_without_anything_to_mask_is_not_copied() -> None:
    batch = build_from_records([Record(value=b"plain", labels={"a": 1})], base_id=1)
    assert redact().intercept("orders", batch) is batch


def test_a_mask_is_taken_as_it_is() -> None:
    assert (
        redacted(Record(value=b"a secret"), settings=RedactSettings(values=("secret",), mask=r"\1"))[0].value
        == rb"a \1"
    )


def test_each_batch_is_masked_by_pair_and_not_by_record() -> None:
    batch = build_from_records([Record(value=b"", labels={"email": "e"})] * 1_000, base_id=1)
    left = redact().intercept("orders", batch)
    assert isinstance(left, RecordBatch)
    assert (left.pair_count, left.count) == (1, 1_000)


TOML = """
[interceptors.redact]
labels = ["email"]
headers = ["authorization"]
values = ["hunter2"]
[exchanges.mail]
type = "topic"
[topics.orders]
kind = "stream"
interceptors = ["redact"]
[[topics.orders.bindings]]
exchange = "mail"
key = "orders.#"
"""


async def test_a_broker_stores_the_mask_and_not_the_secret(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, TOML) as broker:
        async with linn.connect(broker.url) as client:
            async with client.producer(exchange="mail") as producer:
                await producer.publish(
                    b"a hunter2", routing_key="orders.new", labels={"email": "a@b.c"}, headers={"authorization": b"x"}
                )
            async with client.consumer("orders") as consumer:
                message = await anext(consumer)
                assert message.value == b"a ***"
                assert message.labels["email"] == "***"
        broker.stop()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"a ***" in stored
    assert b"hunter2" not in stored
    assert b"a@b.c" not in stored


def test_a_regular_expression_that_is_none_is_found_before_the_broker_serves(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, TOML.replace('"hunter2"', '"("'))
    with pytest.raises(BrokerNotReady, match=r"interceptors.redact: values\[0\] is no regular expression") as raised:
        broker.start()
    assert raised.value.returncode == 3
