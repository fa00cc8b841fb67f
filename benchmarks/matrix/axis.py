"""The axes: the parameter that varies, its values, and the figures measured for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from benchmarks.matrix.point import DEFAULT, Point
from benchmarks.plan import MatrixPlan

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Axis:
    """One field of a point, varied while the others keep their defaults."""

    name: str
    title: str
    field: str
    values: tuple[Any, ...]
    unit: str = "krecords/s"
    consumes: bool = True
    """Whether it makes a difference for readers."""

    def point(self, value: Any) -> Point:
        """The point at `value`."""
        point: Point = dataclasses.replace(DEFAULT, **{self.field: value})
        return point

    def values_of(self, plan: MatrixPlan) -> tuple[Any, ...]:
        """The values that are measured."""
        return self.values if plan.is_whole else self.values[:2]

    def label(self, value: Any) -> str:
        """A value's label, for people."""
        if self.field == "batch_bytes" and value == 0:
            return "1 record"
        if self.field.endswith("_bytes"):
            return size_label(value)
        return f"{value:,}" if isinstance(value, int) else str(value)


def size_label(size: float) -> str:
    """A size in bytes, for people."""
    for unit, count in (("MiB", MIB), ("KiB", KIB)):
        if size >= count:
            return f"{size / count:g} {unit}"
    return f"{size:g} B"


AXES = (
    Axis(
        "record-size",
        "Record size",
        "record_bytes",
        (16, 64, 128, 512, 2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, MIB),
        "MB/s",
    ),
    Axis("batch-size", "Batch size", "batch_bytes", (0, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)),
    Axis("acks", "Acks", "acks", ("none", "leader", "all"), consumes=False),
    Axis("engine", "Storage engine", "engine", ("dram", "segmented-log")),
    Axis("fsync", "fsync policy", "fsync", ("os", "interval", "always"), consumes=False),
    Axis("codec", "Codec", "codec", ("none", "zstd")),
    Axis("connections", "Connections", "connections", (1, 10, 100, 1_000)),
    Axis("partitions", "Partitions", "partitions", (1, 10, 100, 1_000, 10_000)),
)
