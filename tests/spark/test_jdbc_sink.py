"""Pipelines into a table of a database, with the Derby that comes with Spark: each row at least once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driver_process import driver
from spark_session import needs_spark

import linn.sync
from linn.spark_plugin.spec import PipelineSpec

needs_spark()


CONFIG = """
[topics.numbers]
kind = "stream"
"""
COUNT = 400


def test_each_record_is_in_the_table_whenever_the_driver_is_killed(
    spark: Any, url: str, client: linn.sync.Client, tmp_path: Path
) -> None:
    database = f"jdbc:derby:{tmp_path / 'database'}"
    pipeline = PipelineSpec(
        name="table",
        topics=("numbers",),
        format="jdbc",
        options={"url": f"{database};create=true", "dbtable": "NUMBERS"},
        value="json",
        schema="number INT",
        trigger_ms=0,
        source_options={"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"},
    )
    with client.producer("numbers") as producer:
        producer.publish_many([b'{"number": %d}' % number for number in range(COUNT)])
    log = tmp_path / "derby.log"  # By itself Derby writes it into the current folder.
    conf = {"spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={log}"}
    with driver(tmp_path, url, pipeline, conf=conf) as first:
        first.next_event("progress", "table")
    with driver(tmp_path, url, pipeline, conf=conf) as second:
        second.next_event("idle", "table")
        assert second.finish() == 0
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(log))
    table = spark.read.format("jdbc").options(url=database, dbtable="NUMBERS").load()
    assert sorted(row.number for row in table.distinct().collect()) == [*range(COUNT)]
