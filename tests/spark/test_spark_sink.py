"""Writes to topics against real Spark and a real broker: every row once, whatever fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_session import needs_spark
from topic_reading import committed

import linn.sync
from linn.core.batch.key_hash import partition_of
from linn.spark_plugin import each_batch

needs_spark()

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support"),
]

CONFIG = """
[exchanges.news]
type = "topic"
"""


def numbers(client: linn.sync.Client, topic: str) -> list[int]:
    return sorted(int(message.value) for message in committed(client, topic))


def save(frame: Any, url: str, **options: Any) -> None:
    given = {"linn.bootstrap.servers": url, **options}
    frame.write.format("linn").options(**given).mode("append").save()


def test_a_batch_write_has_all_columns(spark: Any, url: str, client: linn.sync.Client, topic: str) -> None:
    frame = spark.sql(
        """SELECT concat('k', id) AS key, cast(id AS string) AS value, concat('r.', id % 2) AS routing_key,
        map('late', 'yes') AS labels, cast(id % 3 AS int) AS partition,
        array(named_struct('key', 'n', 'value', cast('h' AS binary))) AS headers FROM range(30)"""
    )
    save(frame, url, topic=topic)
    found = committed(client, topic)
    assert sorted(int(message.value) for message in found) == [*range(30)]
    for message in found:
        number = int(message.value)
        assert (message.key, message.routing_key) == (b"k%d" % number, f"r.{number % 2}")
        assert (message.labels, message.headers) == ({"late": "yes"}, (("n", b"h"),))
        assert message.partition == number % 3


def test_a_key_goes_to_the_partition_that_every_client_gives_it(
    spark: Any, url: str, client: linn.sync.Client, topic: str
) -> None:
    frame = spark.sql(
        "SELECT if(id % 5 = 0, NULL, concat('k', id)) AS key, cast(id AS string) AS value FROM range(100)"
    )
    save(frame, url, topic=topic)
    found = committed(client, topic)
    assert sorted(int(message.value) for message in found) == [*range(100)]
    assert all(message.key is None or message.partition == partition_of(message.key, 3) for message in found)


def test_rows_go_to_the_topics_that_they_name(spark: Any, url: str, client: linn.sync.Client) -> None:
    for name in ("even", "odd"):
        client.admin.create_topic(name, kind="stream")
    frame = spark.sql("SELECT cast(id AS string) AS value, if(id % 2 = 0, 'even', 'odd') AS topic FROM range(20)")
    save(frame, url)
    assert numbers(client, "even") == [*range(0, 20, 2)]
    assert numbers(client, "odd") == [*range(1, 20, 2)]


def test_an_exchange_routes_rows_to_queues(spark: Any, url: str, client: linn.sync.Client) -> None:
    client.admin.create_topic("late", kind="queue")
    client.admin.bind("news", "late", "late.#")
    frame = spark.sql("SELECT cast(id AS string) AS value, if(id < 5, 'late.x', 'other') AS routing_key FROM range(20)")
    save(frame, url, exchange="news")
    with client.consumer("late", prefetch=5) as consumer:
        assert sorted(int(next(consumer).value or b"") for _ in range(5)) == [*range(5)]


def test_a_batch_write_that_fails_leaves_nothing_and_a_task_that_is_tried_again_counts_once(
    spark: Any, url: str, client: linn.sync.Client, tmp_path: Path
) -> None:
    client.admin.create_topic("tried", kind="stream", partitions=3)
    mark = str(tmp_path / "failed")

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if not Path(mark).exists():
            Path(mark).touch()
            raise ZeroDivisionError

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        raise ZeroDivisionError

    frame = spark.sql("SELECT cast(id AS string) AS value FROM range(0, 1000, 1, 2)")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        save(frame.mapInArrow(fail, "value string"), url, topic="tried")
    assert committed(client, "tried") == []
    save(frame.mapInArrow(fail_once, "value string"), url, topic="tried")
    assert numbers(client, "tried") == [*range(1000)]


def test_a_write_whose_tasks_all_fail_holds_back_no_reader(
    spark: Any, url: str, client: linn.sync.Client, topic: str
) -> None:
    def fail_late(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from (batch.slice(0, 500) for _ in range(200))
        raise ZeroDivisionError

    frame = spark.sql("SELECT cast(id AS string) AS value FROM range(0, 10000, 1, 1)")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        save(frame.mapInArrow(fail_late, "value string"), url, topic=topic)
    stored = sum(each.high_watermark for each in client.describe(topic).topics[0].partitions)
    assert stored > 0, "some rows were published before the task failed"
    with client.producer(topic) as producer:
        producer.publish(b"7")
    assert numbers(client, topic) == [7]


def test_a_numbered_write_takes_effect_once(spark: Any, url: str, client: linn.sync.Client, topic: str) -> None:
    def numbered(number: int, first: int, **more: str) -> None:
        frame = spark.sql(f"SELECT cast(id AS string) AS value FROM range({first}, {first + 5})")
        options = {"linn.transaction.name": "nightly", "linn.transaction.number": str(number), **more}
        save(frame, url, topic=topic, **options)

    numbered(0, 0)
    numbered(0, 0)
    numbered(1, 5)
    numbered(1, 5)
    for number, first in ((0, 0), (1, 6)):
        with pytest.raises(Exception, match=r"spark\.checkpoint_outdated"):
            numbered(number, first)
    identity = {"linn.transaction.identity": "the file of Monday"}
    numbered(2, 10, **identity)
    numbered(2, 99, **identity)
    assert numbers(client, topic) == [*range(15)]


def rewind(checkpoint: Path) -> None:
    """Have the query's last micro-batch run again, as after a crash between linn's commit and Spark's own."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def run(spark: Any, url: str, source: str, target: str, checkpoint: Path, columns: tuple[str, ...] = ("value",)) -> Any:
    """Copy what is there from topic to topic."""
    stream = spark.readStream.format("linn").options(**{"linn.bootstrap.servers": url, "subscribe": source})
    frame = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
    writer = frame.selectExpr(*columns).writeStream.format("linn").option("linn.bootstrap.servers", url)
    query = writer.option("topic", target).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    running = query.start()
    try:
        running.awaitTermination(120)
    finally:
        running.stop()
    return running


def test_a_streaming_query_writes_each_row_once_also_when_a_batch_runs_again(
    spark: Any, url: str, client: linn.sync.Client, topic: str, tmp_path: Path
) -> None:
    client.admin.create_topic("source", kind="stream", partitions=2)
    with client.producer("source") as producer:
        producer.publish_many([b"%d" % number for number in range(100)])
    run(spark, url, "source", topic, tmp_path)
    assert numbers(client, topic) == [*range(100)]
    rewind(tmp_path)
    run(spark, url, "source", topic, tmp_path)
    assert numbers(client, topic) == [*range(100)]
    with client.producer("source") as producer:
        producer.publish_many([b"%d" % number for number in range(100, 130)])
    run(spark, url, "source", topic, tmp_path)
    assert numbers(client, topic) == [*range(130)]


def test_a_query_that_makes_other_rows_each_time_is_refused_until_spark_is_told_that_its_batch_is_done(
    spark: Any, url: str, client: linn.sync.Client, topic: str, tmp_path: Path
) -> None:
    client.admin.create_topic("random", kind="stream")

    def copy(first: int) -> None:
        with client.producer("random") as producer:
            producer.publish_many([b"%d" % number for number in range(first, first + 10)])
        run(spark, url, "random", topic, tmp_path, columns=("value", "uuid() AS key"))

    copy(0)
    copy(10)
    rewind(tmp_path)
    with pytest.raises(Exception, match=r"makes other rows each time .* \[spark\.checkpoint_outdated\]"):
        copy(20)
    assert numbers(client, topic) == [*range(20)]
    shutil.copy(tmp_path / "commits" / "0", tmp_path / "commits" / "1")
    copy(30)
    assert numbers(client, topic) == [*range(40)]


def test_updates_of_an_aggregate_are_written_once_also_when_a_batch_runs_again(
    spark: Any, url: str, client: linn.sync.Client, topic: str, tmp_path: Path
) -> None:
    client.admin.create_topic("counted", kind="stream")
    read = {"linn.bootstrap.servers": url, "subscribe": "counted", "startingOffsets": "earliest"}

    def count() -> None:
        frame = spark.readStream.format("linn").options(**read).load().groupBy("value").count()
        rows = frame.selectExpr("value AS key", "cast(count AS string) AS value").writeStream.outputMode("update")
        write = each_batch(**{"linn.bootstrap.servers": url}, topic=topic, name="counts")
        running = (
            rows.foreachBatch(write).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )
        try:
            running.awaitTermination(120)
        finally:
            running.stop()

    with client.producer("counted") as producer:
        producer.publish_many([b"a", b"b", b"a"])
    count()
    rewind(tmp_path)
    count()
    found = sorted((message.key, message.value) for message in committed(client, topic))
    assert found == [(b"a", b"2"), (b"b", b"1")]


def test_what_an_earlier_run_left_open_is_aborted(
    spark: Any, url: str, client: linn.sync.Client, topic: str, tmp_path: Path
) -> None:
    client.admin.create_topic("before", kind="stream")
    with client.producer("before") as producer:
        producer.publish_many([b"%d" % number for number in range(10)])
    run(spark, url, "before", topic, tmp_path)
    query = json.loads((tmp_path / "metadata").read_text())["id"]
    zombie = client.shared_transactions(f"spark.{query}", run=7)
    ticket = zombie.join()
    with zombie.producer(ticket, topic) as producer:
        producer.publish(b"666")
    with client.producer("before") as producer:
        producer.publish_many([b"%d" % number for number in range(10, 20)])
    run(spark, url, "before", topic, tmp_path)
    with pytest.raises(linn.errors.TransactionFenced):
        zombie.commit(ticket, [producer.id], sequence=99)
    assert numbers(client, topic) == [*range(20)]


@pytest.mark.parametrize(
    ("sql", "options", "text"),
    [
        ("SELECT 'a' AS key", {"topic": "even"}, "the column value is missing"),
        ("SELECT 1 AS value", {"topic": "even"}, "the column value is binary or string, not int"),
        ("SELECT 'a' AS value", {}, "no topic is named"),
        ("SELECT 'a' AS value", {"topic": "even", "exchange": "news"}, "contradict each other"),
        ("SELECT 'a' AS value", {"topic": "even", "tpic": "x"}, "no option 'tpic'"),
        ("SELECT 'a' AS value", {"topic": "even", "linn.transaction.name": "x"}, "go together"),
        (
            "SELECT 'a' AS value",
            {"topic": "even", "linn.transaction.identity": "x"},
            "goes with linn.transaction.number",
        ),
        ("SELECT 'a' AS value, 'k' AS Key", {"topic": "even"}, "the column Key would be passed over: call it key"),
        ("SELECT 'a' AS value, '' AS topic", {}, "the column topic is null or empty"),
        ("SELECT 'a' AS value, 1 AS partition", {"exchange": "news"}, "an exchange chooses partitions itself"),
    ],
)
def test_a_wrong_write_is_refused(spark: Any, url: str, sql: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        save(spark.sql(sql), url, **options)


def test_overwriting_is_refused(spark: Any, url: str) -> None:
    writer = spark.sql("SELECT 'a' AS value").write.format("linn").option("linn.bootstrap.servers", url)
    with pytest.raises(Exception, match="can't be overwritten"):
        writer.option("topic", "even").mode("overwrite").save()
