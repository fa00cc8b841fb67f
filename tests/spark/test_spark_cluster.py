"""A real standalone master and worker, from PySpark's own package: executors read and write linn themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
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
import sys
from pyspark.sql import SparkSession

master, url, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1").getOrCreate()
broker = {"linn.bootstrap.servers": url}
print("COUNT", spark.read.format("linn").options(**broker, subscribe="flights").load().count())
flights = spark.readStream.format("linn").options(**broker, subscribe="flights", startingOffsets="earliest").load()
copies = flights.select("key", "value").writeStream.format("linn").options(**broker, topic="copies")
copies.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
print("EXECUTORS", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
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


@pytest.mark.timeout(300)
def test_executors_of_a_cluster_read_and_write(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    with BrokerProcess(tmp_path / "broker", CONFIG) as broker, linn.sync.connect(broker.urls[0]) as client:
        with client.producer("flights") as producer:
            values = [b"%d" % number for number in range(RECORDS)]
            producer.publish_many(values, keys=values)
        listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        says = r"Starting Spark master at (spark://\S+)"
        with daemon("master.Master", *listen, folder=tmp_path, says=says) as master:
            limits = ("--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
            says = r"Successfully registered with master (\S+)"
            with daemon("worker.Worker", master, *listen, *limits, folder=tmp_path, says=says):
                done = subprocess.run(
                    [sys.executable, str(tmp_path / "job.py"), master, broker.urls[0], str(tmp_path / "checkpoint")],
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
                    capture_output=True, text=True, timeout=200, check=False,
                )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"COUNT {RECORDS}" in done.stdout
        assert "EXECUTORS 1" in done.stdout
        found = [message.value for message in committed(client, "copies")]
        assert sorted(found, key=lambda value: int(value or b"")) == values
