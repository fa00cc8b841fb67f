"""The streaming query of a pipeline: format, trigger, checkpoint."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from linn.spark_plugin.driver.checkpoint import check_output, dead_letter_checkpoint_of, is_new
from linn.spark_plugin.driver.frames import broker_options
from linn.spark_plugin.errors import PipelineInvalid
from linn.spark_plugin.sink.each_batch import batch_writer
from linn.spark_plugin.spec import DriverSpec, PipelineSpec, checkpoint_of, transactions_of

LAKES = {"delta": ("delta_sink", "DeltaSink"), "iceberg": ("iceberg_sink", "IcebergSink")}


def started_query(session: SparkSession, spec: DriverSpec, pipeline: PipelineSpec, rows: DataFrame) -> StreamingQuery:
    """Start the query that writes the rows.

    Raises:
        PipelineInvalid, CheckpointMissing: see there.
        AnalysisException: Spark can't write the rows in this way.
    """
    checkpoint = checkpoint_of(spec.state_dir, pipeline)
    writer = _writer(rows, pipeline, pipeline.name, checkpoint).outputMode(pipeline.output_mode)
    if pipeline.format in ("parquet", "json"):
        assert pipeline.path is not None
        check_output(session, checkpoint, pipeline.path)
        writer = writer.format(pipeline.format).options(**pipeline.options).option("path", pipeline.path)
        return writer.partitionBy(*pipeline.partition_by).start()
    if pipeline.format in LAKES:
        return writer.foreachBatch(_lake(pipeline, is_new=is_new(session, checkpoint)).write).start()
    if pipeline.format == "jdbc":
        return writer.foreachBatch(_jdbc_batch(pipeline.options)).start()
    if pipeline.format == "linn":
        options = {**pipeline.options, **broker_options(spec)}
        return writer.foreachBatch(batch_writer(options, transactions_of(pipeline.name))).start()
    return writer.format(pipeline.format).options(**pipeline.options).start()


def started_dead_letters(spec: DriverSpec, pipeline: PipelineSpec, rows: DataFrame) -> StreamingQuery:
    """Start the query that writes the dead letters: each micro-batch is committed once."""
    assert pipeline.dead_letter is not None
    checkpoint = dead_letter_checkpoint_of(spec.state_dir, pipeline)
    writer = _writer(rows, pipeline, f"{pipeline.name} dead letters", checkpoint).outputMode("append")
    options = {**broker_options(spec), "topic": pipeline.dead_letter}
    return writer.foreachBatch(batch_writer(options, transactions_of(pipeline.name))).start()


def _writer(rows: DataFrame, pipeline: PipelineSpec, name: str, checkpoint: str) -> DataStreamWriter:
    writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint)
    if pipeline.available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{pipeline.trigger_ms} milliseconds")


def _lake(pipeline: PipelineSpec, *, is_new: bool) -> Any:
    """Make and check the sink of a lake. Raises PipelineInvalid: its package is not installed, or the table does not
    fit.
    """
    sink = lake_sink(pipeline)
    sink.check(is_new=is_new)
    return sink


def lake_sink(pipeline: PipelineSpec) -> Any:
    """Make the sink of a lake, without checking its table. Raises PipelineInvalid: its package is not installed."""
    module, name = LAKES[pipeline.format]
    try:
        found = import_module(f"linn.spark_plugin.driver.{module}")
    except ModuleNotFoundError as error:
        raise PipelineInvalid(
            f"format {pipeline.format} needs a package that is not installed ({error.name}): "
            f"pip install 'linn[{pipeline.format}]'"
        ) from error
    return getattr(found, name)(pipeline)


def _jdbc_batch(options: dict[str, str]) -> Any:
    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("jdbc").options(**options).mode("append").save()

    return write
