"""Limits of the cost of a hostile input."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from stopwatch import at_most


@contextmanager
def bounded(cpu_s: float = 1.0, peak_bytes: int = 16 << 20) -> Iterator[None]:
    """Check that the block stays within a peak of Python's memory and, in `make perf`, of CPU time."""
    tracemalloc.start()
    try:
        with at_most(cpu_s=cpu_s):
            yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < peak_bytes
