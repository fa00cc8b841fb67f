"""Status of a driver as JSON lines, for the supervisor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

STATUS_FD = "LINN_STATUS_FD"
"""Environment variable that names the descriptor."""
_STDOUT = 1

Offsets = dict[str, dict[str, int]]
"""Offsets by topic and partition."""


class StatusWriter:
    """Writer of status lines. When the reader is gone, `is_broken` is set and nothing is raised."""

    def __init__(self, descriptor: int) -> None:
        self.is_broken = False
        self._descriptor = descriptor

    @classmethod
    def from_environment(cls) -> StatusWriter:
        """Make a writer for the descriptor that the supervisor has named, or for standard output.

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
    durations = progress.get("durationMs") or {}
    return {
        "batch": progress.get("batchId", 0),
        "rows": progress.get("numInputRows", 0),
        "input_rows_per_s": _rate(progress.get("inputRowsPerSecond")),
        "processed_rows_per_s": _rate(progress.get("processedRowsPerSecond")),
        "duration_ms": durations.get("triggerExecution", progress.get("batchDuration", 0)),
        "durations": dict(durations),
        "end": merged_offsets(source.get("endOffset") for source in progress.get("sources", ())),
    }


def logged_offsets(text: str) -> Offsets:
    """Return the offsets in a file of a checkpoint's log: version, Spark's metadata, and a line for each source."""
    return merged_offsets(text.splitlines()[2:])


def merged_offsets(sources: Iterable[Any]) -> Offsets:
    """Return the offsets that all sources of a query have reached: a topic may be read twice, by a join with itself."""
    found: Offsets = {}
    for source in sources:
        for topic, partitions in offsets_of(source).items():
            known = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = min(offset, known.get(partition, offset))
    return found


def offsets_of(found: Any) -> Offsets:
    """Return the offsets that a source reports, if it has topics, as linn's source has; else nothing."""
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
            offsets[topic] = {name: at for name, at in known.items() if name.isdecimal()}
    return offsets


def _rate(found: Any) -> float:
    """Return a rate as JSON can hold it: Spark reports NaN and infinity where it divides by zero."""
    return float(found) if isinstance(found, int | float) and abs(found) < 1e15 else 0.0
