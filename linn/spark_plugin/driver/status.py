"""Status of a driver as JSON lines, for the supervisor."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

STATUS_FD = "LINN_STATUS_FD"
"""Environment variable that names the descriptor."""
_STDOUT = 1

Offsets = dict[str, dict[str, int]]
"""Offsets by topic and partition."""


class StatusWriter:
    """Writer of status lines. When nobody reads them any more, `is_broken` is set and nothing is raised."""

    def __init__(self, descriptor: int) -> None:
        self.is_broken = False
        self._descriptor = descriptor

    @classmethod
    def from_environment(cls) -> StatusWriter:
        """Make one for the descriptor that the supervisor has named, or for standard output.

        Processes that are started from here on don't inherit the descriptor.
        """
        descriptor = int(os.environ.pop(STATUS_FD, _STDOUT))
        if descriptor != _STDOUT:
            os.set_inheritable(descriptor, False)
        return cls(descriptor)

    def write(self, event: str, pipeline: str | None = None, **fields: Any) -> None:
        """Write one line."""
        line = json.dumps({"event": event, "pipeline": pipeline, **fields}, separators=(",", ":")).encode() + b"\n"
        view = memoryview(line)
        try:
            while view and not self.is_broken:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.is_broken = True


def progress_fields(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `progress` line from Spark's progress of one micro-batch."""
    end: Offsets = {}
    latest: Offsets = {}
    for source in progress.get("sources", ()):
        # A topic that is read twice, by a join with itself, counts by the slower of both readers.
        _merge(end, offsets_of(source.get("endOffset")))
        _merge(latest, offsets_of(source.get("latestOffset")))
    durations = progress.get("durationMs") or {}
    return {
        "batch": progress.get("batchId", 0),
        "rows": progress.get("numInputRows", 0),
        "input_rows_per_s": _rate(progress.get("inputRowsPerSecond")),
        "processed_rows_per_s": _rate(progress.get("processedRowsPerSecond")),
        "duration_ms": durations.get("triggerExecution", progress.get("batchDuration", 0)),
        "durations": dict(durations),
        "end": end,
        "latest": latest,
        "lag": lag(end, latest),
    }


def offsets_of(found: Any) -> Offsets:
    """Return the offsets in what a source reports: of linn's source, or of another that has topics; else nothing."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return {}
    if not isinstance(found, dict):
        return {}
    offsets: Offsets = {}
    for topic, entry in found.items():
        partitions = entry.get("offsets", entry) if isinstance(entry, dict) else None
        if isinstance(partitions, dict):
            # Negative numbers stand for the ends of a log whose offsets are not known yet.
            known = {name: at for name, at in partitions.items() if isinstance(at, int) and at >= 0}
            offsets[topic] = known
    return offsets


def lag(end: Offsets, latest: Offsets) -> int:
    """Return the number of records between the two, over all partitions."""
    return sum(
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


def _merge(into: Offsets, more: Offsets) -> None:
    for topic, partitions in more.items():
        known = into.setdefault(topic, {})
        for partition, offset in partitions.items():
            known[partition] = min(offset, known.get(partition, offset))


def _rate(found: Any) -> float:
    """Return a rate; Spark has NaN and infinity where it divides by zero, which JSON does not have."""
    return float(found) if isinstance(found, int | float) and abs(found) < 1e15 else 0.0
