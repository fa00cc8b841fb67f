"""A streaming query reads and writes topics of three brokers, each of which is killed: every row is there once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import RealCluster, real_cluster
from spark_session import needs_spark
from topic_reading import committed
from two_pipelines import until

import linn.sync
from linn.spark_plugin.connections import forget_client
from linn.spark_plugin.place import BrokerPlace
from linn.spark_plugin.source.options import checked_options
from linn.spark_plugin.source.planning import planned
from linn.testing.process import BrokerProcess
from linn.verbs import TRANSACTIONS_TOPIC

needs_spark()

import pyarrow as pa  # noqa: E402

from linn.spark_plugin.sink.job import WriteJob, commit  # noqa: E402
from linn.spark_plugin.source.arrow_columns import arrow_schema  # noqa: E402
from linn.spark_plugin.source.reading import read_range  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support"),
]
TOPICS = ("orders", "bills", "copies")
TABLES = "".join(f'[topics.{name}]\nkind = "stream"\npartitions = 2\n' for name in TOPICS)
BURST = 4_000


def place(cluster: RealCluster) -> str:
    """The addresses of all brokers."""
    return ",".join(url.removeprefix("linn://") for url in cluster.urls)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """Three brokers; each topic is led by another one."""
    with real_cluster(tmp_path, tables=TABLES) as found:
        found.until_whole(*TOPICS)
        with linn.sync.connect(found.urls[0]) as client:
            for number, topic in enumerate(TOPICS, 1):
                if found.leader(topic) != number:
                    client.admin.perform("cluster.elect", topic=topic, leader=number)
        for number, topic in enumerate(TOPICS, 1):
            until(lambda topic=topic, number=number: found.leader(topic) == number, f"{number} does not lead {topic}")
        yield found


def publish(cluster: RealCluster, count: int) -> None:
    """Publish orders, each held by all brokers."""
    with linn.sync.connect(f"linn://{place(cluster)}") as client, client.producer("orders", acks="all") as producer:
        producer.publish_many([b"%d" % number for number in range(count)])


def without(cluster: RealCluster, lost: int) -> dict[str, str]:
    """The option that names all brokers but one."""
    urls = cluster.urls_without(lost)
    return {"linn.bootstrap.servers": ",".join(url.removeprefix("linn://") for url in urls)}


def started(spark: Any, servers: str, folder: Path) -> Any:
    """Start a query that writes each order to two topics."""
    broker = {"linn.bootstrap.servers": servers}
    read = spark.readStream.format("linn").options(
        **broker, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="400"
    )
    rows = read.load().selectExpr("value", "explode(array('bills', 'copies')) AS topic")
    return rows.writeStream.format("linn").options(**broker, checkpointLocation=str(folder / "checkpoint")).start()


def is_in_the_middle(query: Any, batch: int) -> bool:
    """Whether the query has completed this micro-batch."""
    if query.exception() is not None:
        raise query.exception()
    return (query.lastProgress or {"batchId": -1})["batchId"] >= batch


def test_a_plan_that_is_made_while_a_topic_has_no_leader_has_all_its_records(cluster: RealCluster) -> None:
    publish(cluster, 100)
    options = checked_options({**without(cluster, 1), "subscribe": "orders", "maxRecordsPerPartition": "30"})
    cluster.lose(1)
    tasks = planned(options)
    assert sum(part.end - part.start for task in tasks for part in task) == 100
    assert len(tasks) > 3


def test_a_task_reads_on_at_the_next_leader(cluster: RealCluster) -> None:
    publish(cluster, 100)
    options = checked_options({**without(cluster, 1), "subscribe": "orders"})
    tasks = planned(options)
    cluster.lose(1)
    schema = arrow_schema(includes_headers=False, includes_id=False)
    batches = [batch for task in tasks for part in task for batch in read_range(options, part, schema)]
    forget_client(options.broker)
    assert sorted(int(value) for batch in batches for value in batch["value"].to_pylist()) == [*range(100)]


def passed(cluster: RealCluster) -> float:
    """The bytes of batches that brokers have passed on, to leaders and from them."""
    total = 0.0
    for url in cluster.urls:
        with linn.sync.connect(url) as client:
            for metric in client.admin.metrics("linn_cluster_forwarded_published", "linn_cluster_forwarded_delivered"):
                total += sum(value for _, value in metric["samples"])
    return total


def test_tasks_read_and_write_at_leaders(cluster: RealCluster) -> None:
    publish(cluster, 100)
    before = passed(cluster)
    options = checked_options({**without(cluster, 1), "subscribe": "orders"})
    schema = arrow_schema(includes_headers=False, includes_id=False)
    read = [batch for task in planned(options) for part in task for batch in read_range(options, part, schema)]
    assert sum(batch.num_rows for batch in read) == 100
    forget_client(options.broker)
    written_at = BrokerPlace(cluster.urls[0])
    commit([WriteJob(written_at, "spark.test", 1, 60.0, topic="bills").write(read)], 1)
    forget_client(written_at)
    assert passed(cluster) == before


def test_a_write_is_committed_at_the_next_coordinator(cluster: RealCluster) -> None:
    written_at = BrokerPlace(f"linn://{place(cluster)}")
    rows = pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(100)]})
    written = WriteJob(written_at, "spark.test", 1, 60.0, topic="bills").write([rows])
    coordinator = cluster.leader(TRANSACTIONS_TOPIC)
    cluster.lose(coordinator)
    commit([written], 1)
    commit([written], 1)
    forget_client(written_at)
    with linn.sync.connect(cluster.urls_without(coordinator)[0]) as client:
        assert sorted(int(message.value or b"") for message in committed(client, "bills")) == [*range(100)]


@pytest.mark.timeout(1_800)
def test_a_query_goes_on_while_each_leader_in_turn_is_killed(spark: Any, cluster: RealCluster, tmp_path: Path) -> None:
    published = 0
    query = started(spark, place(cluster), tmp_path)
    try:
        with linn.sync.connect(f"linn://{place(cluster)}") as client, client.producer("orders") as producer:
            for topic in ("copies", TRANSACTIONS_TOPIC, "orders"):
                producer.publish_many([b"%d" % number for number in range(published, published + BURST)])
                batch = (query.lastProgress or {"batchId": -1})["batchId"] + 2
                published += BURST
                until(lambda batch=batch: is_in_the_middle(query, batch), "the query makes no progress")
                victim = cluster.leader(topic)
                cluster.lose(victim, signal.SIGKILL)
                until(lambda batch=batch: is_in_the_middle(query, batch + 3), "the query does not go on")
                cluster.recover(victim)
                cluster.until_whole(*TOPICS, TRANSACTIONS_TOPIC)
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    with linn.sync.connect(f"linn://{place(cluster)}") as client:
        for topic in ("bills", "copies"):
            found = Counter(int(message.value or b"") for message in committed(client, topic))
            assert found == Counter(range(published))


@pytest.mark.timeout(1_800)
def test_a_query_goes_on_over_restarts_of_a_broker_alone(spark: Any, tmp_path: Path) -> None:
    published = 0
    with BrokerProcess(tmp_path, TABLES) as broker, linn.sync.connect(broker.url) as client:
        query = started(spark, broker.url, tmp_path)
        try:
            with client.producer("orders") as producer:
                for _ in range(3):
                    producer.publish_many([b"%d" % number for number in range(published, published + BURST)])
                    published += BURST
                    batch = (query.lastProgress or {"batchId": -1})["batchId"] + 2
                    until(lambda batch=batch: is_in_the_middle(query, batch), "the query makes no progress")
                    broker.kill()
                    broker.start()
            query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()
        for topic in ("bills", "copies"):
            found = Counter(int(message.value or b"") for message in committed(client, topic))
            assert found == Counter(range(published))
