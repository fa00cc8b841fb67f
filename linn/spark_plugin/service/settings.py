"""The tables of Spark pipelines: `[spark]`, `[[spark.pipelines]]` and `[topics.NAME.spark_sink]`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from linn.api import Secret
from linn.spark_plugin.spec import OutputMode, SinkFormat, ValueForm, check_shape

DURATION_S_MAX = 86_400.0
"""Upper limit of the timeouts: a longer one is a typing error."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")

Timeout = Annotated[float, msgspec.Meta(gt=0, le=DURATION_S_MAX)]
Texts = dict[str, str]
Options = dict[str, str | Secret]
"""Texts, some of which are references to secrets."""


class SinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[topics.NAME.spark_sink]`: a Spark pipeline that writes the topic's records to a sink. It is called as the topic
    is, and may be changed live.
    """

    format: Annotated[SinkFormat, msgspec.Meta(description="The format of the sink.")] = "parquet"
    path: Annotated[
        str | None, msgspec.Meta(description="Folder or URL of the sink. Parquet, JSON and Delta need it.")
    ] = None
    options: Annotated[
        Options,
        msgspec.Meta(
            description="Further options of the format, as a table of texts: a JDBC url and dbtable, an Iceberg "
            'catalog, a topic or exchange of linn. A secret is written as `{ file = "PATH" }`, '
            '`{ env = "NAME" }` or `{ credential = "NAME" }`.'
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
        check_shape(self)


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
    environment: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Variables of the broker's environment that drivers get as well, as names; `AWS_*` stands for "
            "all that begin so. By default they get only what Python, Java, Spark and Hadoop go by."
        ),
    ] = ()
    conf: Annotated[
        Options, msgspec.Meta(description="Configuration of Spark, as a table of texts, and of secrets as in options.")
    ] = msgspec.field(default_factory=dict)
    bootstrap: Annotated[
        str | None,
        msgspec.Meta(
            description="The broker's URL for drivers and executors. Default: the address of the native listener; the "
            "executors of a cluster need one that they can reach."
        ),
    ] = None
    credentials: Annotated[
        str | None,
        msgspec.Meta(
            description="File with the login of drivers and executors, on all machines of a cluster, for its owner "
            "alone: `user` and `password`, or `token`, in TOML. Default: the broker gives each driver a login of its "
            "own, with the rights of its pipelines. In a cluster whose brokers require a login it is needed."
        ),
    ] = None
    ca: Annotated[
        str | None,
        msgspec.Meta(
            description="File in PEM, on all machines of a cluster: the authorities that drivers and executors trust, "
            "for a `linns://` address. Default: the system's."
        ),
    ] = None
    state_dir: Annotated[
        str | None,
        msgspec.Meta(
            description="Folder or URL for checkpoints. Default: a folder in the broker's `data_dir`. In a cluster it "
            "is needed, and all brokers have to reach it, unless each pipeline has a `checkpoint`."
        ),
    ] = None
    drain_timeout_s: Annotated[
        Timeout, msgspec.Meta(description="How long a stop waits for the micro-batch in progress before it kills.")
    ] = msgspec.field(default=30.0, name="drain_timeout")
    start_timeout_s: Annotated[
        Timeout,
        msgspec.Meta(
            description="How long the start of each pipeline may take before its driver is killed. Each further try "
            "has twice the time, up to 15 minutes."
        ),
    ] = msgspec.field(default=120.0, name="start_timeout")
    live: Annotated[
        bool,
        msgspec.Meta(
            description="Whether requests may give a topic a `spark_sink`, within the limits of `paths`, `connections` "
            "and `modules`. By default only this file may: a pipeline has the rights of the broker's user."
        ),
    ] = False
    paths: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Folders or URLs below which a live sink may have its `path` and its `checkpoint`."),
    ] = ()
    modules: Annotated[
        tuple[str, ...], msgspec.Meta(description="Modules whose functions may be the `transform` of a live sink.")
    ] = ()
    connections: Annotated[
        dict[str, Options],
        msgspec.Meta(
            description="Options of databases and catalogs by a name, as tables of texts and secrets: a sink takes "
            'those of `options.connection = "NAME"`, and a live one can have such options in no other way.'
        ),
    ] = msgspec.field(default_factory=dict)
    pipelines: Annotated[
        tuple[PipelineSettings, ...], msgspec.Meta(description="Pipelines, as an array of tables.")
    ] = ()

    def __post_init__(self) -> None:
        """Check the names of variables. Raises ValueError."""
        for name in self.environment:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f'environment lists names such as "AWS_REGION" or "AWS_*", not {name[:60]!r}')
