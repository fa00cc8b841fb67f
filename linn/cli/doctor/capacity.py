"""Capacity of a machine with a configuration: connections, records a second, days of records.

Law: an estimate names its bound. Figures that depend on the speed of this machine are measured, or left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from linn.cli.doctor.finding import Finding
from linn.cli.doctor.machine import disk_space, memory_bytes
from linn.cli.server.server import files_wanted
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.config.config import Config
from linn.core.config.topic_settings import TopicSettings
from linn.core.env.real.file_limits import file_limits
from linn.core.env.real.net import FILES_MIN, FILES_SHARE
from linn.core.errors.texts import counted

CONNECTION_BYTES = 40 << 10
"""Memory of an idle connection: up to 25 KiB in the broker, and the kernel's buffers of its socket."""
MEMORY_SHARE = 0.25
"""Part of the memory for connections; the rest is for records, output, and the page cache."""
DISK_SHARE = 0.95
"""Part of the free disk that may be filled."""
_BATCH_RECORDS = 1_000
_DAY_S = 86_400.0


class Speed(NamedTuple):
    """Measured speed of one client with messages of one size."""

    published_per_s: float
    """Rate in large confirmed batches."""
    consumed_per_s: float
    one_by_one_per_s: float
    """Rate with each message confirmed before the next is sent."""


class Capacity(NamedTuple):
    """Estimated capacity of a machine."""

    connections: int
    connections_bound: str
    """Resource that limits the connections."""
    rate_per_s: float
    """Assumed rate of messages."""
    size: int
    """Assumed bytes of each message."""
    kept_s: float | None
    """Time that messages at this rate fit into the free disk; None where that is not known."""
    speed: Speed | None
    """Measured speed; None: not measured."""

    def data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        speed = self.speed
        return {
            "connections": self.connections,
            "connections_bound": self.connections_bound,
            "rate_per_s": self.rate_per_s,
            "size": self.size,
            "kept_s": None if self.kept_s is None else round(self.kept_s),
            "published_per_s": None if speed is None else round(speed.published_per_s),
            "consumed_per_s": None if speed is None else round(speed.consumed_per_s),
            "one_by_one_per_s": None if speed is None else round(speed.one_by_one_per_s),
        }


def stored_bytes(size: int) -> float:
    """Return the bytes on disk of one message in large uncompressed batches."""
    batch = build_from_records([Record(value=bytes(size)) for _ in range(_BATCH_RECORDS)], base_id=1)
    return len(batch.message) / _BATCH_RECORDS


def capacity(config: Config, rate_per_s: float, size: int, speed: Speed | None) -> Capacity:
    """Estimate the capacity."""
    settings = config.broker
    limit = file_limits().hard
    # The broker reserves as many for files when it accepts connections.
    files = max(files_wanted(config), FILES_MIN, limit // FILES_SHARE)
    bounds = {
        "connections_max": settings.connections_max,
        "descriptors": max(0, limit - files),
        "memory": int(memory_bytes() * MEMORY_SHARE) // CONNECTION_BYTES,
    }
    bound = min(bounds, key=lambda name: bounds[name])
    space = disk_space(settings.data_dir)
    kept_s = None if space is None else space.free_bytes * DISK_SHARE / (rate_per_s * stored_bytes(size))
    return Capacity(bounds[bound], bound, rate_per_s, size, kept_s, speed)


def capacity_findings(config: Config, holds: Capacity) -> Iterator[Finding]:
    """Describe the capacity; warn if the configuration retains more than fits."""
    found = f"{holds.connections:,}; {holds.connections_bound} lets no more in"
    if holds.connections:
        yield Finding("holds connections", "ok", found)
    else:
        yield Finding("holds connections", "warning", found, "see the finding about it")
    if holds.speed is None:
        advice = "linn doctor --measure starts a broker of its own here for some seconds"
        yield Finding("holds messages per second", "ok", "not measured", advice)
    else:
        speed, of = holds.speed, f"of {counted(holds.size, 'byte')}"
        found = (
            f"one client, {of}: {speed.published_per_s:,.0f} published in batches, {speed.consumed_per_s:,.0f} "
            f"consumed, {speed.one_by_one_per_s:,.0f} where each is confirmed before the next"
        )
        yield Finding("holds messages per second", "ok", found, "plan with half of it, and keep the rest as a reserve")
    if holds.kept_s is not None:
        yield _kept(config, holds, holds.kept_s)


def _kept(config: Config, holds: Capacity, kept_s: float) -> Finding:
    flow = f"{holds.rate_per_s:,g} messages of {counted(holds.size, 'byte')} a second"
    found = f"{duration(kept_s)} of {flow}, uncompressed, in what is free now"
    wanted_s = max((_retention_s(topic) for topic in config.topics.values()), default=0.0)
    if wanted_s > kept_s:
        wanted = "for ever" if wanted_s == float("inf") else f"for {duration(wanted_s)}"
        advice = (
            f"a topic keeps its records {wanted}: give it retention_bytes, or a shorter retention, or a larger disk"
        )
        return Finding("holds records", "warning", found, advice)
    return Finding("holds records", "ok", found)


def _retention_s(topic: TopicSettings) -> float:
    """Return the retention of records whatever consumers settle; 0 where a size bounds it."""
    if topic.kind == "queue":
        return 0.0 if topic.keep_ms is None or topic.retention_bytes is not None else topic.keep_ms / 1000
    if topic.retention_bytes is not None or topic.bytes_max is not None:
        return 0.0
    return float("inf") if topic.retention_ms is None else topic.retention_ms / 1000


def duration(seconds: float) -> str:
    """Format a duration in days, hours or minutes."""
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:,.0f} days"
    if seconds >= 7_200:
        return f"{seconds / 3_600:.0f} hours"
    return f"{seconds / 60:.0f} minutes"
