"""Start lines: the time until `linn serve` is ready, and its memory when idle."""

from __future__ import annotations

from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]

from benchmarks.line import Bound, Line
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder


def start_lines(plan: Plan) -> Iterator[Line]:
    """Both lines, with an empty configuration."""
    ready_s: list[float] = []
    idle_mb: list[float] = []
    for _ in range(plan.starts):
        with fresh_folder(plan.folder) as folder, broker(folder, "") as process:
            ready_s.append(process.ready_s)
            idle_mb.append(psutil.Process(process.pid).memory_info().rss / 1e6)
    yield Line("start", "linn serve until ready", "s", Bound(0.7, at_most=True), ready_s)
    yield Line("start", "linn serve idle", "MB", Bound(90, at_most=True), idle_mb)
