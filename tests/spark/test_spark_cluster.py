"""A real standalone master and workers, from PySpark's own package: executors read and write linn themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from logged_in import PASSWORD, as_root, job_options, secured, tells
from spark_session import needs_spark
from topic_reading import committed

import linn.sync
from linn.testing.process import BrokerProcess

needs_spark()

RECORDS = 5_000
CONFIG = """
[topics.flights]
kind = "stream"
partitions = 4
[topics.copies]
kind = "stream"
partitions = 2
"""
JOB = """
import json, sys
from pyspark.sql import SparkSession

master, options, checkpoint, events = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", events)
builder = builder.config("spark.eventLog.compress", "false")
spark = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1").getOrCreate()
broker = json.loads(options)
print("COUNT", spark.read.format("linn").options(**broker, subscribe="flights").load().count())
flights = spark.readStream.format("linn").options(**broker, subscribe="flights", startingOffsets="earliest").load()
copies = flights.select("key", "value").writeStream.format("linn").options(**broker, topic="copies")
copies.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
print("EXECUTORS", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
spark.stop()
"""
SPECULATION = """
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession

master, url, folder = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.speculation", "true").config("spark.speculation.minTaskRuntime", "0")
spark = builder.config("spark.speculation.interval", "100ms").getOrCreate()


def stuck_at_first(batches):
    task = TaskContext.get()
    for batch in batches:
        yield batch
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            open(folder + "/nobody-writes").read()
    open(f"{folder}/partition-{task.partitionId()}-attempt-{task.attemptNumber()}", "w").close()


numbers = spark.range(0, 5000, numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
numbers = numbers.mapInArrow(stuck_at_first, numbers.schema)
writer = numbers.write.format("linn").option("linn.bootstrap.servers", url).option("topic", "copies")
writer.mode("append").save()
spark.stop()
"""


@contextmanager
def daemon(name: str, *arguments: str, folder: Path, says: str) -> Iterator[str]:
    """Run a daemon of Spark until it has said something; yield the part of it that is in brackets."""
    import pyspark

    command = [f"{Path(pyspark.__file__).parent}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(says, line)
            if found:
                break
        else:
            pytest.fail(f"{name} ended with {process.wait()}")
        yield found[1]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextmanager
def cluster(folder: Path, cores: int, *hosts: str) -> Iterator[str]:
    """Run a master, and a worker with so many cores at each of the hosts; yield the master's URL."""
    ports = ("--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        says = r"Starting Spark master at (spark://\S+)"
        master = stack.enter_context(daemon("master.Master", "--host", "127.0.0.1", *ports, folder=folder, says=says))
        for host in hosts:
            limits = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(folder / "work"))
            worker = ("worker.Worker", master, "--host", host, *ports, *limits)
            stack.enter_context(daemon(*worker, folder=folder, says=r"Successfully registered with master (\S+)"))
        yield master


def submit(folder: Path, program: str, *arguments: str) -> str:
    """Run a program to its end. Returns what it printed."""
    (folder / "job.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "job.py"), *arguments],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def in_order(values: Iterable[bytes | None]) -> list[bytes | None]:
    """Sort texts of numbers."""
    return sorted(values, key=lambda value: int(value or b""))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker", CONFIG) as broker:
        yield broker


def test_executors_of_a_cluster_log_in_read_and_write(tmp_path: Path) -> None:
    data, events = tmp_path / "broker", tmp_path / "events"
    data.mkdir()
    events.mkdir()
    with secured(data, CONFIG) as broker, as_root(broker) as client, cluster(tmp_path, 2, "127.0.0.1") as master:
        with client.producer("flights") as producer:
            values = [b"%d" % number for number in range(RECORDS)]
            producer.publish_many(values, keys=values)
        options = json.dumps(job_options(broker))
        printed = submit(tmp_path, JOB, master, options, str(tmp_path / "checkpoint"), str(events))
        assert f"COUNT {RECORDS}" in printed
        assert "EXECUTORS 1" in printed
        assert in_order(message.value for message in committed(client, "copies")) == values
    for folder in (events, tmp_path / "work", tmp_path / "checkpoint"):
        assert tells(folder, PASSWORD) == []
    assert tells(events, "SparkListenerJobStart"), "it is not compressed"


def test_of_two_attempts_at_a_task_one_counts(tmp_path: Path, broker: BrokerProcess) -> None:
    # Spark gives a task that is late a second attempt, on another host.
    os.mkfifo(tmp_path / "nobody-writes")
    with linn.sync.connect(broker.url) as client, cluster(tmp_path, 1, "127.0.0.1", "127.0.0.2") as master:
        submit(tmp_path, SPECULATION, master, broker.url, str(tmp_path))
        assert (tmp_path / "partition-0-attempt-1").exists()
        assert not (tmp_path / "partition-0-attempt-0").exists()
        assert in_order(message.value for message in committed(client, "copies")) == [
            b"%d" % number for number in range(RECORDS)
        ]
