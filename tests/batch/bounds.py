"""What a hostile input may cost."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded(cpu_s: float = 1.0, peak_bytes: int = 16 << 20) -> Iterator[None]:
    """Fails where the block takes more CPU time, or more of Python's memory at once."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        took, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < cpu_s
    assert peak < peak_bytes
