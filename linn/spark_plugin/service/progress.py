"""The progress of a pipeline, as its driver reports it in lines of status."""

from __future__ import annotations

from typing import Any

import msgspec


class StatusLine(msgspec.Struct, frozen=True):
    """Line of status of a driver. `event` determines the fields that are set."""

    event: str
    pipeline: str | None = None
    error: str = ""
    error_class: str = ""
    fatal: bool = False
    spark: str = ""
    """Version of Spark."""
    application: str = ""
    ui: str | None = None
    """URL of Spark's own pages."""
    batch: int = 0
    rows: int = 0
    input_rows_per_s: float = 0.0
    processed_rows_per_s: float = 0.0
    duration_ms: int = 0
    end: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Offsets by topic and partition; all records below are in the sink."""


class Progress:
    """The progress of one pipeline since the broker's start."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.rows_per_s = 0.0
        """Rate of the last micro-batch; 0 while there is nothing to read."""
        self.duration_ms: int | None = None
        """Duration of the last micro-batch."""
        self.batch: int | None = None
        """Number of the last micro-batch, which Spark counts from the pipeline's very first start."""
        self.time_ms: int | None = None
        """Time of the last report."""

    def report(self, status: StatusLine, now_ms: int) -> None:
        """Note the report of a micro-batch."""
        self.batches += 1
        self.rows += status.rows
        self.rows_per_s, self.duration_ms = status.processed_rows_per_s, status.duration_ms
        self.batch, self.time_ms = status.batch, now_ms

    def idle(self, now_ms: int) -> None:
        """Note that there was nothing to read."""
        self.rows_per_s, self.time_ms = 0.0, now_ms

    def pause(self) -> None:
        """Note that the pipeline does not run."""
        self.rows_per_s = 0.0

    def data(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "rows_per_s": round(self.rows_per_s, 1),
            "duration_ms": self.duration_ms,
            "batch": self.batch,
            "time_ms": self.time_ms,
        }
