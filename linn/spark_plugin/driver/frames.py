"""DataFrames of a pipeline: the rows that it writes, and its dead letters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from linn.spark_plugin.driver import json_values
from linn.spark_plugin.driver.pipeline_settings import imported_transform, source_options, view_name
from linn.spark_plugin.errors import PipelineInvalid
from linn.spark_plugin.place import CA, CREDENTIALS, SERVERS
from linn.spark_plugin.spec import DriverSpec, PipelineSpec


class PipelineFrames(NamedTuple):
    """The DataFrames of a pipeline."""

    rows: DataFrame
    dead_letters: DataFrame | None
    """Rows for the dead-letter topic, if there is one."""


def broker_options(driver: DriverSpec) -> dict[str, str]:
    """Return the options of source and sink that say where the broker is, and how to log in there."""
    files = {CREDENTIALS: driver.credentials, CA: driver.ca}
    named = {option: os.path.abspath(path) for option, path in files.items() if path is not None}
    return {SERVERS: driver.bootstrap, **named}


def pipeline_frames(session: SparkSession, broker: Mapping[str, str], pipeline: PipelineSpec) -> PipelineFrames:
    """Make the DataFrames. `broker`: see `broker_options`.

    Raises:
        PipelineInvalid: the transform can't be imported, raises, or makes no DataFrame.
        AnalysisException, ParseException: Spark refuses the schema, the SQL text or the transform.
    """
    dead = None
    if pipeline.dead_letter is not None and pipeline.schema is not None:
        everything = _source(session, broker, pipeline, pipeline.topics, includes_headers=True)
        dead = json_values.dead_letters(json_values.parsed(everything, pipeline.schema), pipeline.name, pipeline.schema)
    return PipelineFrames(_transformed(session, broker, pipeline), dead)


def _transformed(session: SparkSession, broker: Mapping[str, str], pipeline: PipelineSpec) -> DataFrame:
    def of(topics: tuple[str, ...]) -> DataFrame:
        return _valued(_source(session, broker, pipeline, topics), pipeline)

    if pipeline.sql is None and pipeline.transform is None:
        rows = of(pipeline.topics)
        # linn's sink would take these columns for the target.
        return rows.drop("topic", "partition") if pipeline.format == "linn" else rows
    frames = {topic: of((topic,)) for topic in pipeline.topics}
    if pipeline.sql is not None:
        return _of_sql(session, frames, pipeline.sql)
    assert pipeline.transform is not None
    function = imported_transform(pipeline.transform)
    try:
        found = function(frames if len(frames) > 1 else frames[pipeline.topics[0]])
    except (PySparkException, OSError):  # Spark's errors are reported unchanged; errors of the network may pass.
        raise
    except (Exception, SystemExit) as error:
        text = f"the transform {pipeline.transform} raised {type(error).__name__}: {error}"
        raise PipelineInvalid(text) from error
    if not isinstance(found, DataFrame):
        raise PipelineInvalid(f"the transform {pipeline.transform} returns {type(found).__name__}, not a DataFrame")
    return found


def _of_sql(session: SparkSession, frames: Mapping[str, DataFrame], sql: str) -> DataFrame:
    """Return the result of a query over views, which exist only while Spark plans it, as other pipelines may reuse the
    names.
    """
    names = [view_name(topic) for topic in frames]
    if len({name.lower() for name in names}) < len(names):
        raise PipelineInvalid(f"topics share the name of their view: {', '.join(names)}")
    try:
        for name, frame in zip(names, frames.values(), strict=True):
            frame.createOrReplaceTempView(name)
        return session.sql(sql)
    finally:
        for name in names:
            session.catalog.dropTempView(name)


def _source(
    session: SparkSession,
    broker: Mapping[str, str],
    pipeline: PipelineSpec,
    topics: tuple[str, ...],
    *,
    includes_headers: bool = False,
) -> DataFrame:
    own = source_options(pipeline, topics)
    is_elsewhere = any(name.lower() == SERVERS for name in own)  # Another broker gets no login of this one's.
    reader = session.readStream.format("linn").option("subscribe", ",".join(topics))
    if includes_headers:
        reader = reader.option("includeHeaders", "true")
    return reader.options(**({} if is_elsewhere else broker), **own).load()


def _valued(frame: DataFrame, pipeline: PipelineSpec) -> DataFrame:
    if pipeline.value == "string":
        return frame.withColumn("value", json_values.text_of("value"))
    if pipeline.value == "json":
        assert pipeline.schema is not None
        parsed = json_values.parsed(frame, pipeline.schema)
        return json_values.good_rows(parsed, keeps_malformed=pipeline.dead_letter is None)
    return frame
