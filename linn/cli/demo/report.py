"""What a worker process tells the demo: JSON lines on its standard output."""

from __future__ import annotations

from typing import Literal

import msgspec


class Report(msgspec.Struct, frozen=True):
    """One line."""

    kind: Literal["ready", "received", "acked", "holding"]
    at_s: float = 0.0
    """The machine's monotonic clock, when it had happened."""
    numbers: list[int] = []
    """Flights."""
    attempt: int = 0
    """Of a delivery: 1 the first time."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Report).decode
