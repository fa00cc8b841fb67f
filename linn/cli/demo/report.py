"""Reports of worker processes: JSON lines on their standard output."""

from __future__ import annotations

from typing import Literal

import msgspec


class Report(msgspec.Struct, frozen=True):
    """Report of one event."""

    kind: Literal["ready", "received", "acked", "holding"]
    at_s: float = 0.0
    """Time of the event on the machine's monotonic clock."""
    numbers: list[int] = []
    """Numbers of flights."""
    attempt: int = 0
    """Attempt of a delivery, from 1."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Report).decode
