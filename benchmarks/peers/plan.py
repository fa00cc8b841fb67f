"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPETITIONS = 3


@dataclass(frozen=True)
class Plan:
    """Sizes and times of everything."""

    folder: Path
    """Where the servers' data folders are made."""
    seconds: float = 4.5
    """Of publishing, per measurement: all its repetitions together. The warm-up is not among them."""
    record_bytes: tuple[int, ...] = (128, 1024)
    stock_bytes_max: int = 512 << 20
    """What one repetition publishes at most, so that it stays in memory and is consumed in bounded time."""
    is_apart: bool = False
    """Give each server one processor and the client the others."""

    @property
    def repetition_s(self) -> float:
        """Of publishing."""
        return self.seconds / REPETITIONS

    def records_max(self, record_bytes: int) -> int:
        """Of one repetition."""
        return self.stock_bytes_max // record_bytes
