"""Streaming queries against real Spark and a real broker."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from spark_session import needs_spark

import linn.sync
from linn.testing.process import BrokerProcess

needs_spark()

pytestmark = pytest.mark.filterwarnings("error")

Rows = list[tuple[int, int]]
"""Batch and number in the value, of each row."""


def publish(client: linn.sync.Client, topic: str, numbers: range) -> None:
    with client.producer(topic) as producer:
        for number in numbers:
            producer.publish(b"%d" % number)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "127.0.0.1:{1}".format(*listener.getsockname())


class Query:
    """A query that keeps the rows of each micro-batch, and its checkpoint for the next run."""

    def __init__(self, spark: Any, url: str, folder: Path, options: dict[str, Any]) -> None:
        self.spark, self.url, self.folder, self.options = spark, url, folder, options
        self.rows: Rows = []

    def _keep(self, frame: Any, batch: int) -> None:
        self.rows += [(batch, int(row.value)) for row in frame.select("value").collect()]

    def run(self, each: Callable[[Any, int], None] | None = None, **more: Any) -> list[int]:
        """Read everything that is there; return the numbers in the new rows."""
        before = len(self.rows)
        given = {"linn.bootstrap.servers": self.url, **self.options, **more}
        stream = self.spark.readStream.format("linn").options(**given).load().writeStream
        query = stream.foreachBatch(each or self._keep).option("checkpointLocation", str(self.folder))
        running = query.trigger(availableNow=True).start()
        try:
            running.awaitTermination(60)
        finally:
            running.stop()
        return sorted(number for _, number in self.rows[before:])

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each micro-batch that had any."""
        batches = [batch for batch, _ in self.rows]
        return [batches.count(batch) for batch in dict.fromkeys(batches)]


@pytest.fixture
def query(spark: Any, url: str, topic: str, tmp_path: Path) -> Query:
    return Query(spark, url, tmp_path, {"subscribe": topic, "startingOffsets": "earliest"})


def test_a_restarted_query_goes_on_where_it_was(query: Query, client: linn.sync.Client, topic: str) -> None:
    publish(client, topic, range(10))
    assert query.run() == [*range(10)]
    assert query.run() == []
    publish(client, topic, range(10, 15))
    assert query.run(startingOffsets="latest") == [*range(10, 15)], "a start counts for new queries only"


def test_a_stream_that_is_used_twice_has_the_rows_of_each_use(
    spark: Any, url: str, client: linn.sync.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, range(40))
    options = {"linn.bootstrap.servers": url, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("linn").options(**options).load().select("value", "partition")
    found: dict[str, list[int]] = {"both": [], "some": []}

    def keep(name: str) -> Callable[[Any, int], None]:
        return lambda frame, batch: found[name].extend(int(row.value) for row in frame.collect())

    frames = {"both": stream.where("partition = 1").union(stream), "some": stream.where("partition <> 1")}
    queries = [
        frame.writeStream.foreachBatch(keep(name)).option("checkpointLocation", str(tmp_path / name))
        .trigger(availableNow=True).start()
        for name, frame in frames.items()
    ]  # fmt: skip
    for each in queries:
        each.awaitTermination(120)
        each.stop()
    some = set(found["some"])
    assert 0 < len(some) == len(found["some"]) < 40
    assert sorted(found["both"]) == sorted([*range(40), *(number for number in range(40) if number not in some)])


def test_a_query_that_starts_at_the_end_loses_nothing_after_that(
    query: Query, client: linn.sync.Client, topic: str
) -> None:
    publish(client, topic, range(10))
    query.options.pop("startingOffsets")
    assert query.run() == []
    publish(client, topic, range(10, 15))
    assert query.run() == [*range(10, 15)]


def test_a_query_goes_on_when_its_broker_restarts(spark: Any, tmp_path: Path) -> None:
    found: list[int] = []
    arrived = threading.Condition()

    def keep(frame: Any, batch: int) -> None:
        values = [int(row.value) for row in frame.select("value").collect()]
        with arrived:
            found.extend(values)
            arrived.notify_all()

    def wait_for(count: int) -> None:
        with arrived:
            assert arrived.wait_for(lambda: len(found) >= count, 60), f"{len(found)} of {count} rows"

    (tmp_path / "broker").mkdir()
    broker = BrokerProcess(tmp_path / "broker", '[topics.numbers]\nkind = "stream"\n', listen=[free_address()])
    with broker:
        options = {"subscribe": "numbers", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        stream = spark.readStream.format("linn").options(**options, **{"linn.bootstrap.servers": broker.url}).load()
        place = str(tmp_path / "checkpoint")
        query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", place).start()
        try:
            for end in (400, 800):
                with linn.sync.connect(broker.url) as client:
                    publish(client, "numbers", range(end - 400, end))
                wait_for(end - 300)
                broker.kill()
                broker.start()
            wait_for(800)
        finally:
            query.stop()
    assert sorted(found) == [*range(800)]


def test_a_first_batch_that_fails_keeps_its_start_at_the_end(
    query: Query, client: linn.sync.Client, topic: str
) -> None:
    publish(client, topic, range(10))
    query.options.pop("startingOffsets")

    def fail(frame: Any, batch: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"):
        query.run(fail)
    publish(client, topic, range(10, 15))
    assert query.run() == [*range(10, 15)]


def test_a_limit_bounds_each_batch(query: Query, client: linn.sync.Client, topic: str) -> None:
    publish(client, topic, range(20))
    assert query.run(maxOffsetsPerTrigger="8") == [*range(20)]
    assert max(query.sizes) <= 8
    assert len(query.sizes) >= 3


def test_a_query_that_ends_by_itself_does_not_wait_for_more(query: Query, client: linn.sync.Client, topic: str) -> None:
    publish(client, topic, range(5))
    assert query.run(minOffsetsPerTrigger="100") == [*range(5)]


def test_partitions_that_are_added_meanwhile_are_read_from_their_start(
    query: Query, client: linn.sync.Client, topic: str
) -> None:
    publish(client, topic, range(4))
    assert query.run() == [*range(4)]
    client.admin.alter_topic(topic, partitions=5)
    publish(client, topic, range(4, 40))
    assert query.run() == [*range(4, 40)]


def test_a_topic_that_was_made_again_is_data_loss(query: Query, client: linn.sync.Client, topic: str) -> None:
    publish(client, topic, range(4))
    assert query.run() == [*range(4)]
    client.admin.delete_topic(topic)
    client.admin.create_topic(topic, kind="stream", partitions=2)
    publish(client, topic, range(100, 103))
    with pytest.raises(Exception, match=r"made again.*spark\.data_lost"):
        query.run()
    assert query.run(failOnDataLoss="false") == [100, 101, 102]


def test_a_topic_that_is_gone_is_data_loss(query: Query, client: linn.sync.Client, topic: str) -> None:
    publish(client, topic, range(4))
    assert query.run() == [*range(4)]
    client.admin.delete_topic(topic)
    with pytest.raises(Exception, match=r"is gone.*spark\.data_lost"):
        query.run()
    assert query.run(failOnDataLoss="false") == []


def test_records_that_were_dropped_before_they_were_read_are_data_loss(
    query: Query, client: linn.sync.Client, topic: str
) -> None:
    sizes = {"message_bytes_max": 2_000, "bytes_max": 2_000}
    client.admin.create_topic("short", kind="stream", storage="dram", overflow="drop-head", **sizes)
    publish(client, "short", range(4))
    assert query.run(subscribe="short") == [*range(4)]
    for number in range(4, 104):
        publish(client, "short", range(number, number + 1))
    start = client.describe("short").topics[0].partitions[0].start_offset
    assert start > 4
    with pytest.raises(Exception, match=r"are gone.*spark\.data_lost"):
        query.run(subscribe="short")
    found = query.run(subscribe="short", failOnDataLoss="false")
    assert found == [*range(found[0], 104)]
    # The broker makes room after it has confirmed, so that the first offset may have been another one a moment ago.
    assert start <= found[0] <= client.describe("short").topics[0].partitions[0].start_offset


def test_a_queue_is_refused_with_what_to_do(query: Query, client: linn.sync.Client, url: str) -> None:
    client.admin.create_topic("mails", kind="queue")
    with pytest.raises(Exception, match='make it kind = "both"'):
        query.run(subscribe="mails")


def test_an_end_is_refused(query: Query) -> None:
    with pytest.raises(Exception, match="endingOffsets is for batch reads"):
        query.run(endingOffsets="latest")


def test_progress_has_the_offsets_by_topic_and_id(
    query: Query, client: linn.sync.Client, topic: str, url: str, spark: Any
) -> None:
    publish(client, topic, range(6))
    found: list[dict[str, Any]] = []
    stream = spark.readStream.format("linn").options(**{"linn.bootstrap.servers": url, **query.options}).load()
    running = stream.writeStream.format("noop").option("checkpointLocation", str(query.folder)).start()
    try:
        running.processAllAvailable()
        found = [source for progress in running.recentProgress for source in json.loads(progress.json)["sources"]]
    finally:
        running.stop()
    info = client.describe(topic).topics[0]
    ends = {str(at): each.high_watermark for at, each in enumerate(info.partitions)}
    (last,) = [each for each in found if each["numInputRows"]]
    assert last["endOffset"][topic] == {"id": str(UUID(int=info.id_high << 64 | info.id_low)), "offsets": ends}
    assert last["latestOffset"] == last["endOffset"]
