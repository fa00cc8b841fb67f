"""The tables of Spark pipelines: `[spark]`, `[[spark.pipelines]]` and `[topics.NAME.spark_sink]`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from linn.spark_plugin.spec import OutputMode, SinkFormat, ValueForm

_TRANSFORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_FILES = ("parquet", "json", "delta")
"""Formats whose sink is a folder."""
_APPEND_ONLY = (*_OF_FILES, "iceberg")
"""Formats of tables, in which a row stays as it was written."""
DURATION_S_MAX = 86_400.0
"""Limit of the timeouts: a longer one is a slip of the finger."""

Timeout = Annotated[float, msgspec.Meta(gt=0, le=DURATION_S_MAX)]
Texts = dict[str, str]


class SinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[topics.NAME.spark_sink]`: a Spark pipeline that writes the topic's records to a sink. It is called as the topic
    is, and may be changed live.
    """

    format: Annotated[SinkFormat, msgspec.Meta(description="The format of the sink.")] = "parquet"
    path: Annotated[
        str | None, msgspec.Meta(description="Folder or URL of the sink. Parquet, JSON and Delta need it.")
    ] = None
    options: Annotated[
        Texts,
        msgspec.Meta(
            description="Further options of the format, as a table of texts: a JDBC url and dbtable, an Iceberg "
            "catalog, a topic or exchange of linn."
        ),
    ] = msgspec.field(default_factory=dict)
    source_options: Annotated[
        Texts,
        msgspec.Meta(
            description="Options of the source, as a table of texts: startingOffsets (default: earliest), "
            "maxOffsetsPerTrigger, failOnDataLoss, includeHeaders."
        ),
    ] = msgspec.field(default_factory=dict)
    trigger_ms: Annotated[
        int, msgspec.Meta(ge=0, le=86_400_000, description="Time from the start of one micro-batch to the next.")
    ] = msgspec.field(default=5_000, name="trigger")
    available_now: Annotated[
        bool, msgspec.Meta(description="Whether to read all that there is, and then to stop, in place of `trigger`.")
    ] = False
    partition_by: Annotated[
        tuple[str, ...], msgspec.Meta(description="Columns by which the sink's files are partitioned.")
    ] = ()
    checkpoint: Annotated[
        str | None,
        msgspec.Meta(description="Folder or URL of the checkpoint. Default: a folder of the pipeline in `state_dir`."),
    ] = None
    transform: Annotated[
        str | None,
        msgspec.Meta(
            description='A Python function, "module:function", from a DataFrame to a DataFrame; where there are '
            "several topics, from a mapping of topics to DataFrames."
        ),
    ] = None
    sql: Annotated[
        str | None,
        msgspec.Meta(description="A query in SQL in place of `transform`; each topic is a view of its name."),
    ] = None
    value: Annotated[ValueForm, msgspec.Meta(description="How values are read.")] = "binary"
    schema: Annotated[
        str | None, msgspec.Meta(description='Columns of JSON values, in Spark\'s DDL: "id long, name string".')
    ] = None
    dead_letter: Annotated[
        str | None, msgspec.Meta(description="The topic for records whose value can't be parsed.")
    ] = None
    output_mode: Annotated[OutputMode, msgspec.Meta(description="Spark's output mode.")] = "append"
    driver: Annotated[
        str,
        msgspec.Meta(
            description="The driver process. Pipelines that name the same one share a Spark session, and restart "
            "together."
        ),
    ] = "default"

    def __post_init__(self) -> None:
        """Check the keys against each other. Raises ValueError."""
        if self.transform is not None and self.sql is not None:
            raise ValueError("has transform and sql, of which there can be one")
        if self.transform is not None and not _TRANSFORM.fullmatch(self.transform):
            raise ValueError(f'transform must be "module:function", not {self.transform[:60]!r}')
        if self.path is None and self.format in _OF_FILES:
            raise ValueError(f'needs a path: format is "{self.format}"')
        for option in ("url", "dbtable") if self.format == "jdbc" else ():
            if option not in self.options:
                raise ValueError(f'needs options.{option}: format is "jdbc"')
        if self.format == "linn" and not {"topic", "exchange"} & self.options.keys():
            raise ValueError('needs options.topic or options.exchange: format is "linn"')
        self._check_values()

    def _check_values(self) -> None:
        """Check what becomes of values and rows. Raises ValueError."""
        if self.value == "json" and self.schema is None:
            raise ValueError('needs a schema, such as "id long, name string": value is "json"')
        for key in ("schema", "dead_letter"):
            if getattr(self, key) is not None and self.value != "json":
                raise ValueError(f'has {key}, which needs value = "json"')
        if self.output_mode != "append" and self.format in _APPEND_ONLY:
            raise ValueError(f'has output_mode = "{self.output_mode}": format "{self.format}" takes "append" only')
        if self.partition_by and self.format not in _APPEND_ONLY:
            raise ValueError(f'has partition_by, which format "{self.format}" does not know')


class PipelineSettings(SinkSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[[spark.pipelines]]`: a Spark pipeline over one topic or several, as an array of tables."""

    name: Annotated[str, msgspec.Meta(description="The pipeline's name in commands and metrics.")]
    topics: Annotated[
        tuple[str, ...], msgspec.Meta(min_length=1, description="The topics that it reads: streams, or both.")
    ]


class SparkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[spark]`: Spark pipelines, which the broker runs in driver processes. They need the extra `linn[spark]` and
    Java 17 or newer.
    """

    enabled: Annotated[bool, msgspec.Meta(description="Whether drivers are started; `false` stops all pipelines.")] = (
        True
    )
    master: Annotated[
        str, msgspec.Meta(description="Spark's master: \"local[N,4]\" for N cores of this machine, or a cluster's URL.")
    ] = "local[2,4]"
    python: Annotated[
        str | None,
        msgspec.Meta(description="The Python that runs drivers, with PySpark. Default: the one that runs the broker."),
    ] = None
    conf: Annotated[Texts, msgspec.Meta(description="Configuration of Spark, as a table of texts.")] = msgspec.field(
        default_factory=dict
    )
    bootstrap: Annotated[
        str | None,
        msgspec.Meta(
            description="The broker's URL for drivers and executors. Default: the address of the native listener; the "
            "executors of a cluster need one that they can reach."
        ),
    ] = None
    state_dir: Annotated[
        str | None,
        msgspec.Meta(description="Folder or URL for checkpoints. Default: a folder in the broker's `data_dir`."),
    ] = None
    drain_timeout_s: Annotated[
        Timeout, msgspec.Meta(description="How long a stop waits for the micro-batch in progress before it kills.")
    ] = msgspec.field(default=30.0, name="drain_timeout")
    start_timeout_s: Annotated[
        Timeout, msgspec.Meta(description="How long a driver may take until its pipelines run, before it is killed.")
    ] = msgspec.field(default=120.0, name="start_timeout")
    pipelines: Annotated[
        tuple[PipelineSettings, ...], msgspec.Meta(description="Pipelines, as an array of tables.")
    ] = ()
