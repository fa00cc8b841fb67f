"""Checkpoints that were restored from an older copy: no sink leaves rows out without a word, or has them twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_session import needs_spark
from topic_reading import committed

import linn.sync
from linn.spark_plugin import each_batch
from linn.spark_plugin.driver.failure import Failure, failure_of
from linn.spark_plugin.spec import DriverSpec, PipelineSpec

needs_spark()
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'linn[delta]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'linn[iceberg]'")

from deltalake import DeltaTable  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402

from linn.spark_plugin.driver.frames import pipeline_frames  # noqa: E402
from linn.spark_plugin.driver.sinks import started_query  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support"),
    pytest.mark.timeout(400),
]
SQL = "SELECT CAST(value AS STRING) AS value, uuid() AS key FROM source"
"""Rows of which a part is another one each time: what they are made of identifies a micro-batch."""


class Copied:
    """A query that copies a topic to a sink and ends, the sink, and the query's checkpoint."""

    def __init__(self, spark: Any, url: str, client: linn.sync.Client, kind: str, folder: Path) -> None:
        self._spark, self._url, self._client, self._kind, self._folder = spark, url, client, kind, folder
        self.checkpoint = folder / "checkpoint"
        self._path = str(folder / "output")
        self._published = 0
        self.source, self._target = f"source.of.{kind}", f"target.of.{kind}"
        for name in (self.source, self._target):
            client.admin.create_topic(name, kind="stream", partitions=2)

    def publish(self, count: int) -> None:
        numbers = range(self._published, self._published + count)
        with self._client.producer(self.source) as producer:
            producer.publish_many([b"%d" % number for number in numbers])
        self._published += count

    def run(self) -> Failure | None:
        """Write all that is there as one micro-batch; return what the query failed with."""
        try:
            query = self._started()
            try:
                query.awaitTermination(120)
            finally:
                query.stop()
        except Exception as error:
            return failure_of(error)
        return None

    def _started(self) -> Any:
        if self._kind not in ("writeStream", "each_batch"):
            spec = DriverSpec(group="g", bootstrap=self._url, state_dir=str(self._folder), pipelines=())
            pipeline = self._pipeline()
            rows = pipeline_frames(self._spark, {"linn.bootstrap.servers": self._url}, pipeline).rows
            return started_query(self._spark, spec, pipeline, rows)
        broker = {"linn.bootstrap.servers": self._url}
        stream = self._spark.readStream.format("linn").options(**broker, subscribe=self.source)
        frame = stream.option("startingOffsets", "earliest").load()
        if self._kind == "each_batch":
            counts = frame.groupBy("value").count().selectExpr("value", "uuid() AS key").writeStream
            writer = counts.outputMode("update").foreachBatch(each_batch(**broker, topic=self._target))
        else:
            writer = frame.select("value").writeStream.format("linn").options(**broker, topic=self._target)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def _pipeline(self) -> PipelineSpec:
        options = {"linn": {"topic": self._target}, "iceberg": {"table": "lake.t", **self._catalog("catalog.")}}
        return PipelineSpec(
            name="copied",
            topics=(self.source,),
            format=self._kind,  # type: ignore[arg-type]
            path=self._path,
            options=options.get(self._kind, {}),
            source_options={"startingOffsets": "earliest"},
            sql=SQL.replace("source", self.source.replace(".", "_")),
            available_now=True,
            checkpoint=str(self.checkpoint),
        )

    def _catalog(self, prefix: str = "") -> dict[str, str]:
        warehouse = self._folder / "warehouse"
        warehouse.mkdir(exist_ok=True)
        properties = {"type": "sql", "uri": f"sqlite:///{self._folder}/catalog.db", "warehouse": f"file://{warehouse}"}
        return {f"{prefix}{name}": value for name, value in properties.items()}

    def rows(self) -> list[int]:
        """The numbers that the sink has."""
        values: Any
        if self._kind == "delta":
            values = DeltaTable(self._path).to_pyarrow_table().column("value").to_pylist()
        elif self._kind == "iceberg":
            values = load_catalog("default", **self._catalog()).load_table("lake.t").scan().to_arrow()
            values = values.column("value").to_pylist()
        elif self._kind in ("parquet", "json"):
            values = [row.value for row in self._spark.read.format(self._kind).load(self._path).collect()]
        else:
            values = [message.value for message in committed(self._client, self._target)]
        return sorted(int(value) for value in values)

    def backup(self, name: str) -> None:
        shutil.copytree(self.checkpoint, self._folder / name)

    def restore(self, name: str) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self._folder / name, self.checkpoint)

    def forget_commit(self) -> None:
        """Have the last micro-batch run again, as after a crash between the sink's commit and Spark's own."""
        names = [path.name for path in (self.checkpoint / "commits").iterdir() if path.name.isdecimal()]
        last = max(names, key=int)
        for path in (self.checkpoint / "commits" / last, self.checkpoint / "commits" / f".{last}.crc"):
            path.unlink(missing_ok=True)


@pytest.fixture
def copied(spark: Any, url: str, client: linn.sync.Client, tmp_path: Path) -> Callable[[str], Copied]:
    return lambda kind: Copied(spark, url, client, kind, tmp_path)


@pytest.mark.parametrize("kind", ["linn", "delta", "iceberg", "parquet", "json", "writeStream", "each_batch"])
def test_an_older_checkpoint_is_refused_and_the_same_micro_batch_is_not(
    copied: Callable[[str], Copied], kind: str
) -> None:
    query = copied(kind)
    for number, name in enumerate(("first", "second", "newest")):
        query.publish(20)
        assert query.run() is None
        query.backup(name)
        assert query.rows() == [*range(20 * (number + 1))]
    query.publish(100)
    for name in ("first", "second"):
        query.restore(name)
        failure = query.run()
        assert failure is not None, f"rows were left out from {name}"
        assert (failure.error_class, failure.fatal) == ("spark.checkpoint_outdated", True), failure
        assert "restore the newest checkpoint" in failure.error, failure
        assert query.rows() == [*range(60)], name
    assert query.run() is not None, "the micro-batch that was refused is not taken the next time"
    assert query.rows() == [*range(60)]
    query.restore("newest")
    query.forget_commit()
    assert query.run() is None
    assert query.run() is None
    assert query.rows() == [*range(160)]
