"""All lines of the group `matrix`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.line import Line
from benchmarks.matrix.backlog import backlog_lines
from benchmarks.matrix.open_loop import latency_lines
from benchmarks.matrix.throughput import throughput_lines
from benchmarks.matrix.working_queue import queue_lines
from benchmarks.plan import Plan


def matrix_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one kind after another."""
    yield from throughput_lines(plan)
    yield from queue_lines(plan)
    yield from latency_lines(plan)
    yield from backlog_lines(plan)
