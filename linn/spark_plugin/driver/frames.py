"""From topics to the DataFrame that a pipeline writes, and the one of its dead letters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from linn.spark_plugin.driver import json_values
from linn.spark_plugin.errors import PipelineInvalid
from linn.spark_plugin.spec import PipelineSpec

SERVERS = "linn.bootstrap.servers"
_BY_TOPIC = ("startingoffsets", "startingoffsetsbytimestamp", "endingoffsets", "endingoffsetsbytimestamp")
"""Options of the source whose JSON has an entry for each topic."""


class PipelineFrames(NamedTuple):
    """The DataFrames of a pipeline."""

    rows: DataFrame
    dead_letters: DataFrame | None
    """Rows for the dead-letter topic, if there is one."""


def pipeline_frames(session: SparkSession, bootstrap: str, pipeline: PipelineSpec) -> PipelineFrames:
    """Make the DataFrames.

    Raises:
        PipelineInvalid: the transform can't be imported or makes no DataFrame, or settings contradict each other.
        AnalysisException, ParseException: Spark refuses the schema, the SQL text or the transform.
    """
    check_pipeline(pipeline)
    dead = None
    if pipeline.dead_letter is not None and pipeline.schema is not None:
        everything = _source(session, bootstrap, pipeline, pipeline.topics, includes_headers=True)
        dead = json_values.dead_letters(json_values.parsed(everything, pipeline.schema), pipeline.name, pipeline.schema)
    return PipelineFrames(_transformed(session, bootstrap, pipeline), dead)


def check_pipeline(pipeline: PipelineSpec) -> None:
    """Check the settings that need no Spark. Raises PipelineInvalid."""
    if not pipeline.topics:
        raise PipelineInvalid("the pipeline names no topic")
    if pipeline.value == "json" and not pipeline.schema:
        raise PipelineInvalid('value = "json" needs a schema, such as "id BIGINT, name STRING"')
    if pipeline.value != "json" and (pipeline.schema or pipeline.dead_letter):
        raise PipelineInvalid('schema and dead_letter are for value = "json"')
    if pipeline.transform and pipeline.sql:
        raise PipelineInvalid("transform and sql contradict each other: give one of them")
    if pipeline.dead_letter in pipeline.topics:
        raise PipelineInvalid(f"the dead-letter topic {pipeline.dead_letter} is one that the pipeline reads")


def source_options(pipeline: PipelineSpec, topics: tuple[str, ...]) -> dict[str, str]:
    """Return the pipeline's options of the source for some of its topics."""
    options = {}
    for name, value in pipeline.source_options.items():
        if name.lower() in _BY_TOPIC and value.lstrip().startswith("{"):
            try:
                found = json.loads(value)
            except ValueError as error:
                raise PipelineInvalid(f"{name} is not JSON: {value[:60]!r}") from error
            chosen = {topic: entry for topic, entry in found.items() if topic in topics}
            if chosen:
                options[name] = json.dumps(chosen)
        else:
            options[name] = value
    return options


def view_name(topic: str) -> str:
    """Return the name of a topic's temporary view: what SQL does not take is replaced by "_"."""
    return re.sub(r"\W", "_", topic, flags=re.ASCII)


def _transformed(session: SparkSession, bootstrap: str, pipeline: PipelineSpec) -> DataFrame:
    def of(topics: tuple[str, ...]) -> DataFrame:
        return _valued(_source(session, bootstrap, pipeline, topics), pipeline)

    if pipeline.sql is None and pipeline.transform is None:
        return of(pipeline.topics)
    frames = {topic: of((topic,)) for topic in pipeline.topics}
    if pipeline.sql is not None:
        return _of_sql(session, frames, pipeline.sql)
    assert pipeline.transform is not None
    function = imported_transform(pipeline.transform)
    found = function(frames if len(frames) > 1 else frames[pipeline.topics[0]])
    if not isinstance(found, DataFrame):
        raise PipelineInvalid(f"the transform {pipeline.transform} returns {type(found).__name__}, not a DataFrame")
    return found


def _of_sql(session: SparkSession, frames: Mapping[str, DataFrame], sql: str) -> DataFrame:
    """Return the result of a query over views, which exist only while Spark plans it: other pipelines name theirs."""
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
    bootstrap: str,
    pipeline: PipelineSpec,
    topics: tuple[str, ...],
    *,
    includes_headers: bool = False,
) -> DataFrame:
    reader = session.readStream.format("linn").option(SERVERS, bootstrap).option("subscribe", ",".join(topics))
    if includes_headers:
        reader = reader.option("includeHeaders", "true")
    return reader.options(**source_options(pipeline, topics)).load()


def _valued(frame: DataFrame, pipeline: PipelineSpec) -> DataFrame:
    if pipeline.value == "string":
        return frame.withColumn("value", frame["value"].cast("string"))
    if pipeline.value == "json":
        assert pipeline.schema is not None
        parsed = json_values.parsed(frame, pipeline.schema)
        return json_values.good_rows(parsed, keeps_malformed=pipeline.dead_letter is None)
    return frame


def imported_transform(name: str) -> Callable[[Any], Any]:
    """Import "module:function". Raises PipelineInvalid."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise PipelineInvalid(f'transform is "module:function", not {name!r}')
    try:
        found = import_module(module)
    except Exception as error:
        raise PipelineInvalid(f"the transform {name} can't be imported: {type(error).__name__}: {error}") from error
    function = getattr(found, attribute, None)
    if not callable(function):
        raise PipelineInvalid(f"the transform {name} can't be imported: {module} has no function {attribute}")
    result: Callable[[Any], Any] = function
    return result
