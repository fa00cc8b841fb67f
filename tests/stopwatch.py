"""Bounds on time, for tests that ask for other things as well. They hold in `make perf`, and nowhere else."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

MEASURES = "MEASURE" in os.environ
"""Whether bounds on time hold: `make perf` and `make soak` set it."""


@contextmanager
def at_most(*, cpu_s: float = math.inf, wall_s: float = math.inf) -> Iterator[None]:
    """Check that the block takes no more CPU time, nor longer, in a run that measures."""
    before_cpu_s, before_s = time.process_time(), time.monotonic()
    yield
    took_cpu_s, took_s = time.process_time() - before_cpu_s, time.monotonic() - before_s
    assert took_cpu_s < cpu_s or not MEASURES, f"it took {took_cpu_s:.3f} s of the processor"
    assert took_s < wall_s or not MEASURES, f"it took {took_s:.3f} s"
