"""Settings of `[storage.segmented-log]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MIB = 1 << 20


class SegmentedLogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for syncing batches and splitting a partition into files."""

    fsync: Annotated[
        Literal["os", "interval", "always"],
        msgspec.Meta(
            description="When data is put on stable storage: os (the operating system decides; survives a crash of the "
            "broker, not of the machine), interval, or always (before a publish is confirmed)."
        ),
    ] = "os"
    flush_interval_ms: Annotated[
        int,
        msgspec.Meta(ge=1, description="With fsync = interval: the longest time of writes that a power loss may take."),
    ] = msgspec.field(default=100, name="flush_interval")
    segment_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            le=1 << 40,
            description="A segment of this size is followed by a new one; retention drops whole ones.",
        ),
    ] = 256 * MIB
    segment_age_ms: Annotated[
        int, msgspec.Meta(ge=1, description="A segment whose first batch is this old is followed by a new one.")
    ] = msgspec.field(default=7 * 86_400_000, name="segment_age")
    index_interval_bytes: Annotated[
        int, msgspec.Meta(ge=512, le=1 << 30, description="Distance between the entries of a segment's index.")
    ] = 64 << 10
