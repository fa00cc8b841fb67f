"""Specification of a driver process, which it reads as JSON from the first line of standard input.

Laws: it holds everything that the driver needs; the module imports no PySpark, so that the broker can make it. One
function finds contradictions in a pipeline, for the tables of the configuration and for this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, Protocol

import msgspec

from linn.core.env.secret import Secret

SinkFormat = Literal["parquet", "json", "delta", "iceberg", "jdbc", "console", "linn"]
ValueForm = Literal["binary", "string", "json"]
OutputMode = Literal["append", "update", "complete"]
CONNECTION = "connection"
"""Option of a sink: the name of a table in `[spark.connections]` whose options it takes."""
_TRANSFORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_FILES = ("parquet", "json", "delta")
"""Formats whose sink is a folder."""
_NAME_CHARACTERS_MAX = 200
"""Longest name of a pipeline in the names of its transactions, which have up to 255 bytes with the query's id."""
_APPEND_ONLY = (*_OF_FILES, "iceberg")
"""Formats to which rows can only be appended."""


class _Shape(Protocol):
    """Settings of a pipeline that depend on each other."""

    @property
    def format(self) -> SinkFormat: ...
    @property
    def path(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, str | Secret]: ...
    @property
    def partition_by(self) -> tuple[str, ...]: ...
    @property
    def transform(self) -> str | None: ...
    @property
    def sql(self) -> str | None: ...
    @property
    def value(self) -> ValueForm: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def dead_letter(self) -> str | None: ...
    @property
    def output_mode(self) -> OutputMode: ...


def check_shape(pipeline: _Shape) -> None:
    """Check the settings of a pipeline against each other. Raises ValueError, whose text follows its name."""
    if pipeline.transform is not None and pipeline.sql is not None:
        raise ValueError("has transform and sql, of which there can be one")
    if pipeline.transform is not None and not _TRANSFORM.fullmatch(pipeline.transform):
        raise ValueError(f'transform must be "module:function", not {pipeline.transform[:60]!r}')
    if pipeline.value == "json" and pipeline.schema is None:
        raise ValueError('needs a schema, such as "id long, name string": value is "json"')
    for key in ("schema", "dead_letter"):
        if getattr(pipeline, key) is not None and pipeline.value != "json":
            raise ValueError(f'has {key}, which needs value = "json"')
    _check_sink(pipeline)


def _check_sink(pipeline: _Shape) -> None:
    if pipeline.path is None and pipeline.format in _OF_FILES:
        raise ValueError(f'needs a path: format is "{pipeline.format}"')
    for option in ("url", "dbtable") if pipeline.format == "jdbc" else ():
        if option not in pipeline.options and (option != "url" or CONNECTION not in pipeline.options):
            raise ValueError(f'needs options.{option}: format is "jdbc"')
    if pipeline.format == "linn" and not {"topic", "exchange"} & pipeline.options.keys():
        raise ValueError('needs options.topic or options.exchange: format is "linn"')
    if pipeline.output_mode != "append" and pipeline.format in _APPEND_ONLY:
        raise ValueError(f'has output_mode = "{pipeline.output_mode}": format "{pipeline.format}" takes "append" only')
    if pipeline.partition_by and pipeline.format not in _APPEND_ONLY:
        raise ValueError(f'has partition_by, which format "{pipeline.format}" does not know')


class PipelineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline: topics, transformation and sink."""

    name: str
    topics: tuple[str, ...]
    format: SinkFormat
    path: str | None = None
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of the sink, with `***` in the place of secrets until the driver gets them."""
    secrets: dict[str, Secret] = msgspec.field(default_factory=dict)
    """Options of the sink that are secrets; empty in what the driver gets."""
    source_options: dict[str, str] = msgspec.field(default_factory=dict)
    trigger_ms: int = 5_000
    available_now: bool = False
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    transform: str | None = None
    sql: str | None = None
    value: ValueForm = "binary"
    schema: str | None = None
    dead_letter: str | None = None
    output_mode: OutputMode = "append"

    def __post_init__(self) -> None:
        """Check the specification. Raises ValueError."""
        if not self.topics:
            raise ValueError(f"pipeline {self.name} names no topic")
        if self.dead_letter in self.topics:
            raise ValueError(f"pipeline {self.name} reads its dead-letter topic, {self.dead_letter}")
        check_shape(self)


def transactions_of(pipeline: str) -> str:
    """Return the beginning of the names of a pipeline's transactions, which no other pipeline's names have."""
    short = len(pipeline) <= _NAME_CHARACTERS_MAX
    return f"spark/{pipeline if short else blake2b(pipeline.encode(), digest_size=16).hexdigest()}/"


def checkpoint_of(state_dir: str, pipeline: PipelineSpec) -> str:
    """Return the place of a pipeline's checkpoint."""
    return pipeline.checkpoint or f"{state_dir.rstrip('/')}/{pipeline.name}/checkpoint"


class DriverSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A driver: a group of pipelines in one Spark session."""

    group: str
    bootstrap: str
    credentials: str | None = None
    """File with the login of the driver and its executors; None: they have none."""
    ca: str | None = None
    """File of the authorities that they trust; None: the system's."""
    state_dir: str
    pipelines: tuple[PipelineSpec, ...]
    master: str = "local[2,4]"
    conf: dict[str, str] = msgspec.field(default_factory=dict)
