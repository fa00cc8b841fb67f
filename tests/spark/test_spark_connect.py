"""Spark Connect: a client without a JVM of its own reads and writes linn through a server, which logs in over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from logged_in import as_root, job_options, secured
from spark_session import needs_spark
from topic_reading import committed

needs_spark()
pytest.importorskip("grpc", reason="Spark Connect is not installed: pip install 'pyspark[connect]'")

RECORDS = 1_000
CONFIG = """
[topics.flights]
kind = "stream"
partitions = 3
[topics.copies]
kind = "stream"
[topics.counts]
kind = "stream"
"""
JOB = """
import json, sys
from pyspark.sql import SparkSession
from linn.spark_plugin import each_batch

options, checkpoints = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
broker = json.loads(options)
flights = spark.read.format("linn").options(**broker, subscribe="flights").load()
print("COUNT", flights.count())
flights.select("key", "value").write.format("linn").options(**broker, topic="copies").mode("append").save()


def run(writer, name):
    writer = writer.option("checkpointLocation", f"{checkpoints}/{name}").trigger(availableNow=True)
    writer.start().awaitTermination()


streamed = spark.readStream.format("linn").options(**broker, subscribe="flights", startingOffsets="earliest").load()
run(streamed.select("key", "value").writeStream.format("linn").options(**broker, topic="copies"), "copies")
counts = streamed.groupBy("partition").count().selectExpr("CAST(count AS STRING) AS value").writeStream
try:
    run(counts.outputMode("complete").foreachBatch(each_batch(**broker, topic="counts")), "nameless")
except Exception as error:
    print("REFUSED", "give each_batch the option linn.transaction.name" in str(error))
named = {**broker, "linn.transaction.name": "counts"}
for _ in range(2):
    run(counts.outputMode("complete").foreachBatch(each_batch(**named, topic="counts")), "counts")
spark.stop()
"""


def test_a_client_of_spark_connect_reads_and_writes(tmp_path: Path) -> None:
    data = tmp_path / "broker"
    data.mkdir()
    with secured(data, CONFIG) as broker, as_root(broker) as client:
        values = [b"%d" % number for number in range(RECORDS)]
        with client.producer("flights") as producer:
            producer.publish_many(values, keys=values)
        command = [sys.executable, "-c", JOB, json.dumps(job_options(broker)), str(tmp_path)]
        # The server chooses a port of its own where Spark is being tested.
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert f"COUNT {RECORDS}" in ended.stdout
        assert "REFUSED True" in ended.stdout
        copies = sorted(message.value or b"" for message in committed(client, "copies"))
        assert copies == sorted(2 * values)
        counts = [int(message.value or b"") for message in committed(client, "counts")]
        assert (len(counts), sum(counts)) == (3, RECORDS)
