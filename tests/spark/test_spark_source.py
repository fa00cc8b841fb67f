"""The Spark source against real Spark and a real broker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from spark_session import needs_spark
from topic_reading import committed

import linn.sync
from linn.spark_plugin.connections import forget_client
from linn.spark_plugin.place import BrokerPlace

needs_spark()
pytestmark = pytest.mark.filterwarnings("error")

CONFIG = """
[topics.flights]
kind = "stream"
partitions = 3

[topics.mails]
kind = "queue"
"""


@pytest.fixture(scope="module")
def filled(client: linn.sync.Client) -> linn.sync.Client:
    """The client, once there are messages in the topics."""
    with client.producer("flights", codec="zstd") as producer:
        for number in range(200):
            producer.publish(
                b"value %d" % number, key=b"key %d" % (number % 7), labels={"late": number % 2 == 0},
                routing_key=f"from.{number % 3}", headers=[("n", b"%d" % number)],
            )  # fmt: skip
    with client.producer("mails") as producer:
        producer.publish_many([b"mail %d" % number for number in range(20)])
    return client


@pytest.fixture
def read(spark: Any, url: str, filled: linn.sync.Client) -> Any:
    def frame(**options: Any) -> Any:
        given = {"linn.bootstrap.servers": url, **options}
        return spark.read.format("linn").options(**given).load()

    return frame


def records(client: linn.sync.Client, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Everything committed in a topic: (partition, offset, key, value)."""
    return [(each.partition, each.offset, each.key, each.value) for each in committed(client, topic)]


def rows(frame: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
    picked = frame.select("partition", "offset", "key", "value").collect()
    return sorted((row[0], row[1], *(bytes(each) if each is not None else None for each in row[2:])) for row in picked)


def test_the_arrow_schema_is_the_declared_one() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from linn.spark_plugin.data_source import columns
    from linn.spark_plugin.source.arrow_columns import arrow_schema

    includes = {"includes_headers": True, "includes_id": True}
    declared = to_arrow_schema(columns(**includes), timezone="UTC")
    assert declared.equals(arrow_schema(**includes))


def test_rows_are_what_a_client_reads(read: Any, client: linn.sync.Client) -> None:
    assert rows(read(subscribe="flights")) == records(client, "flights")
    assert len(rows(read(subscribe="flights"))) == 200


def test_sql_reads_a_view_and_says_why_no_table(spark: Any, url: str, client: linn.sync.Client) -> None:
    source = f"USING linn OPTIONS ('linn.bootstrap.servers' '{url}', subscribe 'flights')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW flights_view {source}")
    assert spark.sql("SELECT count(*) FROM flights_view").first()[0] == len(records(client, "flights"))
    spark.sql(f"CREATE TABLE flights_table {source}")
    try:
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
            spark.sql("SELECT count(*) FROM flights_table").collect()
    finally:
        spark.sql("DROP TABLE flights_table")


def test_every_column_has_what_was_published(read: Any) -> None:
    frame = read(subscribe="flights", includeHeaders="true", includeId="true")
    (row,) = frame.where("value = cast('value 8' as binary)").collect()
    assert (row.topic, row.routing_key, row.labels, row.timestampType) == ("flights", "from.2", {"late": "true"}, 0)
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("n", b"8")]
    assert len(row.id) == 16
    assert row.timestamp.year >= 2020


def test_topics_are_named_by_pattern_or_partition(read: Any, client: linn.sync.Client) -> None:
    assert rows(read(subscribePattern="fl.*")) == records(client, "flights")
    only = [each for each in records(client, "flights") if each[0] == 1]
    assert rows(read(assign=json.dumps({"flights": [1]}))) == only
    assert rows(read(subscribePattern="nothing")) == []


def test_offsets_bound_what_is_read(read: Any, client: linn.sync.Client) -> None:
    starts, ends = {"0": 5, "1": -2, "2": 9}, {"0": 12, "1": -1, "2": 9}
    frame = read(
        subscribe="flights",
        startingOffsets=json.dumps({"flights": starts}),
        endingOffsets=json.dumps({"flights": ends}),
    )
    expected = [r for r in records(client, "flights") if r[0] == 1 or (r[0] == 0 and 5 <= r[1] < 12)]
    assert rows(frame) == expected


def test_times_bound_what_is_read(read: Any) -> None:
    never = {"startingTimestamp": "4000000000000"}
    with pytest.raises(Exception, match=r"has no record from 4000000000000 on"):
        rows(read(subscribe="flights", **never))
    assert rows(read(subscribe="flights", startingOffsetsByTimestampStrategy="latest", **never)) == []
    assert len(rows(read(subscribe="flights", endingTimestamp="4000000000000"))) == 200


def test_the_broker_applies_a_predicate(read: Any, client: linn.sync.Client) -> None:
    found = rows(read(subscribe="flights", where='label.late = true and routing_key = "from.1"'))
    expected = {b"value %d" % number for number in range(200) if number % 2 == 0 and number % 3 == 1}
    assert {row[3] for row in found} == expected
    assert len(found) == len(expected)


def _cached(frame: Any) -> Any:
    some = frame.where("partition = 0").cache()
    try:
        return [some.count(), frame.where("partition <> 0").union(some), some.where("offset < 5"), frame]
    finally:
        some.unpersist()


def _view(frame: Any) -> Any:
    frame.createOrReplaceTempView("used_twice")
    return frame.sparkSession.sql(
        "SELECT * FROM used_twice WHERE offset < 4 UNION ALL SELECT * FROM used_twice WHERE partition = 2"
    )


def _late(frame: Any) -> Any:
    return frame.where("routing_key LIKE 'from.1%' AND partition = 2")


def _early(frame: Any) -> Any:
    return frame.where("partition = 1 OR offset = 3")


USES_TWICE: dict[str, Callable[[Any], Any]] = {
    "two filters": lambda frame: [_late(frame), _early(frame)],
    "a filter, then none": lambda frame: [_late(frame).count(), frame, frame.count(), _late(frame)],
    "one filter on another": lambda frame: [_early(frame).where("routing_key = 'from.0'"), _early(frame)],
    "union": lambda frame: _late(frame).union(_early(frame)).union(frame),
    "self join": lambda frame: frame.where("partition = 0").join(_early(frame).select("offset"), "offset"),
    "semi join": lambda frame: _early(frame).join(_late(frame).select("offset"), "offset", "left_semi"),
    "intersection": lambda frame: _early(frame).intersect(frame.where("offset = 3")),
    "difference": lambda frame: frame.exceptAll(_late(frame)),
    "cache": _cached,
    "SQL view": _view,
}


@pytest.mark.parametrize("where", [None, "label.late = true"])
def test_a_frame_that_is_used_twice_has_the_rows_of_each_use(
    spark: Any, read: Any, client: linn.sync.Client, where: str | None
) -> None:
    schema = "partition int, offset long, routing_key string, value string"
    of_topic = committed(client, "flights")
    picked = [each for each in of_topic if where is None or each.labels["late"]]
    truth = [(each.partition, each.offset, each.routing_key, (each.value or b"").decode()) for each in picked]
    plain = spark.createDataFrame(truth, schema).coalesce(1)
    expected = {name: _rows_of(use(plain)) for name, use in USES_TWICE.items()}
    options = {} if where is None else {"where": where}
    for pushes_down in ("false", "true"):
        frame = read(subscribe="flights", **options).selectExpr(
            "partition", "offset", "routing_key", "cast(value as string) value"
        )
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushes_down)
        try:
            for name, use in USES_TWICE.items():
                assert _rows_of(use(frame)) == expected[name], (name, pushes_down)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert len(truth) == (200 if where is None else 100)


def _rows_of(results: Any) -> list[Any]:
    """Collect what a use returns: one frame, or several frames and counts."""
    several = results if isinstance(results, list) else [results]
    return [each if isinstance(each, int) else sorted(map(tuple, each.collect())) for each in several]


def test_a_frame_reads_what_was_there_when_it_was_first_used(read: Any, client: linn.sync.Client) -> None:
    client.admin.create_topic("snapshots", kind="stream")
    with client.producer("snapshots") as producer:
        producer.publish(b"1")
        frame = read(subscribe="snapshots")
        assert frame.count() == 1
        producer.publish(b"2")
    assert (frame.count(), frame.union(frame).count()) == (1, 2)
    assert read(subscribe="snapshots").count() == 2


def test_a_range_is_split_among_tasks(read: Any, client: linn.sync.Client) -> None:
    frame = read(subscribe="flights", maxRecordsPerPartition="10")
    assert frame.rdd.getNumPartitions() >= 20
    assert rows(frame) == records(client, "flights")
    assert read(subscribe="flights", minPartitions="6").rdd.getNumPartitions() >= 5


def test_a_queue_is_browsed_and_nothing_is_settled(read: Any, client: linn.sync.Client) -> None:
    assert len(rows(read(subscribe="mails"))) == 20
    with client.consumer("mails", prefetch=20) as consumer:
        assert {next(consumer).value for _ in range(20)} == {b"mail %d" % number for number in range(20)}


def test_what_is_not_committed_is_not_read(read: Any, client: linn.sync.Client) -> None:
    client.admin.create_topic("bills", kind="stream")
    with client.transaction("billing") as transaction:
        transaction.publish("bills", b"committed")
    with contextlib.suppress(ZeroDivisionError), client.transaction("billing") as transaction:
        transaction.publish("bills", b"aborted")
        raise ZeroDivisionError
    with client.transaction("billing") as transaction:
        transaction.publish("bills", b"committed as well")
    with client.transaction("billing") as transaction:
        transaction.publish("bills", b"open")
        assert [row[3] for row in rows(read(subscribe="bills"))] == [b"committed", b"committed as well"]


def test_a_topic_that_was_made_again_is_data_loss(client: linn.sync.Client, url: str) -> None:
    from linn.spark_plugin.errors import SparkDataLost
    from linn.spark_plugin.source.arrow_columns import arrow_schema
    from linn.spark_plugin.source.options import checked_options
    from linn.spark_plugin.source.planning import planned
    from linn.spark_plugin.source.reading import read_range

    client.admin.create_topic("prices", kind="stream")
    with client.producer("prices") as producer:
        producer.publish(b"old")
    options = checked_options({"linn.bootstrap.servers": url, "subscribe": "prices"})
    ((wanted,),) = planned(options)
    client.admin.delete_topic("prices")
    client.admin.create_topic("prices", kind="stream")
    with client.producer("prices") as producer:
        producer.publish(b"new")
    schema = arrow_schema(includes_headers=False, includes_id=False)
    try:
        with pytest.raises(SparkDataLost, match="failOnDataLoss=false passes over"):
            list(read_range(options, wanted, schema))
        assert list(read_range(replace(options, fails_on_data_loss=False), wanted, schema)) == []
    finally:
        forget_client(BrokerPlace(url))


def test_offsets_beyond_the_end_are_data_loss(read: Any) -> None:
    ends = json.dumps({"mails": {"0": 999}})
    with pytest.raises(Exception, match=r"spark\.data_lost"):
        read(subscribe="mails", endingOffsets=ends).collect()
    assert len(read(subscribe="mails", endingOffsets=ends, failOnDataLoss="false").collect()) == 20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "flights", "colour": "red"}, "no option 'colour'"),
        ({"subscribe": "nowhere"}, "the broker has no topic nowhere"),
        ({"assign": '{"flights": [7]}'}, "names partition 7"),
        ({"subscribe": "flights", "startingOffsets": '{"flights": {"0": 1}}'}, "has nothing for partition 1"),
        (
            {
                "subscribe": "flights",
                "startingTimestamp": "99999999999999",
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsets": '{"flights": {"0": 1, "1": 0, "2": 0}}',
                "failOnDataLoss": "false",
            },
            "behind its end",
        ),
    ],
)
def test_a_wrong_option_is_refused(read: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        read(**options).collect()
