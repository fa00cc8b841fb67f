"""Bounds on time, for tests that ask for other things as well. They hold in `make perf`, and nowhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tiers import is_measured


@contextmanager
def at_most(*, cpu_s: float = math.inf, wall_s: float = math.inf) -> Iterator[None]:
    """Check that the block takes no more CPU time, nor longer, in a run that measures."""
    if not is_measured():
        yield
        return
    before_cpu_s, before_s = time.process_time(), time.monotonic()
    yield
    took_cpu_s, took_s = time.process_time() - before_cpu_s, time.monotonic() - before_s
    assert took_cpu_s < cpu_s, f"it took {took_cpu_s:.3f} s of the processor"
    assert took_s < wall_s, f"it took {took_s:.3f} s"
