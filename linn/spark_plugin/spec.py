"""The specification that a driver process is given on its first line of standard input, as JSON.

Law: it holds all that the driver needs to know; it imports nothing but msgspec, so that the broker can make it without
PySpark.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SinkFormat = Literal["parquet", "json", "delta", "iceberg", "jdbc", "console", "linn"]
ValueForm = Literal["binary", "string", "json"]
OutputMode = Literal["append", "update", "complete"]


class PipelineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline: topics, what is made of them, and a sink."""

    name: str
    topics: tuple[str, ...]
    format: SinkFormat
    path: str | None = None
    options: dict[str, str] = msgspec.field(default_factory=dict)
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


class DriverSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A driver: a group of pipelines in one Spark session."""

    group: str
    bootstrap: str
    state_dir: str
    pipelines: tuple[PipelineSpec, ...]
    master: str = "local[2,4]"
    conf: dict[str, str] = msgspec.field(default_factory=dict)
