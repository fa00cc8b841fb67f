"""Spark pipelines as a plugin: `[spark]` and `[topics.NAME.spark_sink]`. PySpark is loaded by drivers alone."""

from __future__ import annotations

from collections.abc import Iterable

from linn.api import ServiceKind, ServiceMetric, hookimpl
from linn.rights import Need
from linn.spark_plugin.service.checks import check
from linn.spark_plugin.service.live_sinks import live_problem
from linn.spark_plugin.service.pipeline import needs_of
from linn.spark_plugin.service.service import SparkService
from linn.spark_plugin.service.settings import SinkSettings, SparkSettings

NAME = "spark"
TOPIC_TABLE = "spark_sink"
_PIPELINE = ("pipeline",)

METRICS = (
    ServiceMetric(
        "linn_spark_pipeline_state",
        "gauge",
        ("pipeline", "state"),
        "1 for the state that the pipeline is in, 0 for each other one: `stopped`, `starting`, `running`, `draining`, "
        "`backing off`, `failed`, `elsewhere` (at another broker of the cluster).",
    ),
    ServiceMetric(
        "linn_spark_pipeline_rows_total", "counter", _PIPELINE, "Rows of micro-batches that the driver has reported."
    ),
    ServiceMetric(
        "linn_spark_pipeline_batches_total", "counter", _PIPELINE, "Micro-batches that the driver has reported."
    ),
    ServiceMetric(
        "linn_spark_pipeline_rows_per_second",
        "gauge",
        _PIPELINE,
        "Rate at which the last micro-batch was processed; 0 while there is nothing to read.",
    ),
    ServiceMetric(
        "linn_spark_pipeline_lag_records",
        "gauge",
        _PIPELINE,
        "Records of its topics that can be read and are not in its sink, whether it runs or not. Missing only before "
        "the first start of a pipeline that does not begin with everything, and where another broker of the cluster "
        "leads one of its topics.",
    ),
    ServiceMetric("linn_spark_pipeline_batch_seconds", "gauge", _PIPELINE, "Duration of the last micro-batch."),
    ServiceMetric(
        "linn_spark_pipeline_restarts_total",
        "counter",
        _PIPELINE,
        "Starts of the pipeline after its first one: after failures, changes, and on request.",
    ),
)


def sink_needs(topic: str, sink: SinkSettings) -> Iterable[Need]:
    """Return the rights that a caller needs to give a topic a sink: for the work of the sink."""
    return needs_of((topic,), sink)


@hookimpl
def linn_register_service() -> ServiceKind:
    """Register Spark pipelines."""
    tables = TOPIC_TABLE, SinkSettings, check, live_problem, sink_needs
    return ServiceKind(NAME, SparkSettings, SparkService, *tables, METRICS)
