"""A point in the matrix: all parameters of a run of publishing or consuming."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from benchmarks.load import Target, ask, connected
from benchmarks.plan import RING_BYTES
from linn.core.batch.batch import Codec
from linn.wire import messages

Acks = Literal["none", "leader", "all"]
PARTITIONS_MAX = 500
"""Partitions of one topic here: more are spread over topics, since a topic has 4,096 at most."""
OFFSET_BYTES = 4
"""Size of each value's offset in its column."""
BATCH_HEAD_BYTES = 320
"""An upper bound of a batch's size without its records, so that a batch does not exceed its nominal size."""
CONFIG = """
[broker]
message_bytes_max = "2MiB"

[storage.measured]
engine = "{engine}"
{settings}
"""
"""Configuration of the broker. A message of 1 MiB exceeds the default limit, which includes key and headers."""


@dataclass(frozen=True)
class Point:
    """Parameters of a run; the defaults are the point that every axis crosses."""

    record_bytes: int = 128
    batch_bytes: int = 64 << 10
    """Approximate size; 0 bytes mean a batch of one record."""
    acks: Acks = "leader"
    engine: str = "segmented-log"
    fsync: str = "os"
    codec: str = "none"
    connections: int = 1
    partitions: int = 1
    kind: str = "stream"

    @property
    def records(self) -> int:
        """The number of records in one batch."""
        return max(1, (self.batch_bytes - BATCH_HEAD_BYTES) // (self.record_bytes + OFFSET_BYTES))

    @property
    def batch_codec(self) -> Codec:
        """The codec of a batch."""
        return Codec[self.codec.upper()]

    @property
    def is_ring(self) -> bool:
        """Whether publishing goes to a full topic, where each batch replaces a dropped one."""
        return self.engine == "dram"

    @property
    def topics(self) -> list[str]:
        """The topics of the partitions."""
        return [f"t{number}" for number in range(-(-self.partitions // PARTITIONS_MAX))]

    def place(self, number: int) -> tuple[str, int]:
        """The topic and partition of one of all partitions."""
        return f"t{number // PARTITIONS_MAX}", number % PARTITIONS_MAX

    @property
    def config(self) -> str:
        """The broker's configuration, without its topics."""
        if self.engine == "dram":
            return CONFIG.format(engine="dram", settings=f"memory_bytes_max = {1 << 30}")
        return CONFIG.format(engine=self.engine, settings=f'fsync = "{self.fsync}"')


DEFAULT = Point()


async def make_topics(target: Target, point: Point, ring: bool) -> None:
    """Make the topics of a point. Raises LoadFailed."""
    settings: dict[str, object] = {"kind": point.kind, "storage": "measured"}
    if ring:
        settings |= {"bytes_max": RING_BYTES, "overflow": "drop-head"}
    left = point.partitions
    for name in point.topics:
        async with connected(target) as socket:  # Each with its own time: a partition takes a few milliseconds.
            count = min(left, PARTITIONS_MAX)
            left -= count
            topic = {"name": name, "settings": settings | {"partitions": count}}
            await ask(socket, messages.Administer("topic.create", json.dumps(topic)), messages.Administered)


async def delete_topics(target: Target, point: Point) -> None:
    """Delete the topics with their content. Raises LoadFailed."""
    async with connected(target) as socket:
        for name in point.topics:
            await ask(socket, messages.Administer("topic.delete", json.dumps({"name": name})), messages.Administered)
