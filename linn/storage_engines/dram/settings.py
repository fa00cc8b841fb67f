"""Settings of `[storage.dram]`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class DramSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory limits of a partition, and the way it spills the rest."""

    memory_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1 << 50,
            description="Memory for the batches of one partition; newer ones go to scratch files, in order. A queue "
            "whose consumers keep up holds far less, so only a real backlog reaches the disk.",
        ),
    ] = 256 << 20
    scratch_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=4096, le=1 << 40, description="Size of one scratch file: the unit in which disk space is freed."
        ),
    ] = 64 << 20
