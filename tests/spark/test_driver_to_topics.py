"""Pipelines that write topics: dead letters, and the format `linn`, with a real broker and real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driver_process import driver
from spark_session import needs_spark

import linn.sync
from linn.cli.demo.lake import committed_files
from linn.spark_plugin.spec import PipelineSpec
from linn.testing.process import BrokerProcess

needs_spark()

import duckdb  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

CONFIG = """
[topics.flights]
kind = "stream"
partitions = 2

[topics.copies]
kind = "stream"

[topics.malformed]
kind = "stream"
"""
COUNT = 600


def value(number: int) -> bytes:
    return b'{"number": %d' % number if number % 3 == 0 else b'{"number": %d}' % number


def publish(client: linn.sync.Client, numbers: range) -> None:
    with client.producer("flights") as producer:
        producer.publish_many([value(number) for number in numbers])


def records(client: linn.sync.Client, topic: str) -> list[Any]:
    found: list[Any] = []
    offset = 0
    while True:
        fetched = client.fetch(topic, 0, offset)
        found += [record for batch in fetched.batches for record in batch]
        if fetched.next_offset >= fetched.high_watermark:
            return found
        offset = fetched.next_offset


def test_malformed_records_are_dead_letters_once_and_the_others_go_on(tmp_path: Path) -> None:
    files = tmp_path / "files"
    common: dict[str, Any] = {"topics": ("flights",), "trigger_ms": 0}
    parsed = PipelineSpec(
        name="parsed", format="parquet", path=str(files), value="json", schema="number INT", dead_letter="malformed",
        source_options={"maxOffsetsPerTrigger": "200"}, **common,
    )  # fmt: skip
    earliest = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
    copied = PipelineSpec(name="copied", format="linn", options={"topic": "copies"}, source_options=earliest, **common)
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker", CONFIG) as broker, linn.sync.connect(broker.urls[0]) as client:
        publish(client, range(3))
        with driver(tmp_path, broker.urls[0], parsed, copied) as first:
            first.next_event("progress", "parsed")  # It begins at the end, which is known from here on.
            first.next_event("progress", "copied")
            publish(client, range(3, COUNT))
            first.next_event("progress", "parsed")
            first.next_event("progress", "copied")
            first.process.kill()
        with driver(tmp_path, broker.urls[0], parsed, copied) as second:
            for name in ("parsed", "copied"):
                second.next_event("idle", name)
            assert second.finish() == 0
        dead = records(client, "malformed")
        copies = records(client, "copies")
    expected = [number for number in range(3, COUNT) if number % 3]
    lake = [*map(str, committed_files(files))]
    rows = duckdb.execute("SELECT number FROM read_parquet($1) ORDER BY number", [lake]).fetchall()
    assert [number for (number,) in rows] == expected
    assert sorted(each.value for each in copies) == sorted(map(value, range(COUNT)))
    assert sorted(each.value for each in dead) == sorted(value(number) for number in range(3, COUNT, 3))
    headers = dict(dead[0].headers)
    assert headers["linn.dead.reason"] == b"malformed"
    assert headers["linn.dead.topic"] == b"flights"
    assert headers["linn.dead.offset"].isdigit()
