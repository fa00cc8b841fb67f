"""What `Client.fetch` gives back."""

from __future__ import annotations

from typing import NamedTuple

from linn.client.consume.message import Batch


class FetchedBatches(NamedTuple):
    """Batches from the offset on that was asked for, and the partition's bounds.

    Example:
        batches, start_offset, high_watermark = await client.fetch("prices", 0, 0)
    """

    batches: list[Batch]
    start_offset: int
    """The first offset that can be read."""
    high_watermark: int
    """The offset behind the last that can be read."""
