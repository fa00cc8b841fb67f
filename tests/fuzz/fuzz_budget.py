"""Limits of one input's effect on its reader: it may raise a `LinnError`, in bounded time, with memory
in proportion.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from linn.core.errors.codes import all_errors
from linn.core.errors.tree import LinnError

T = TypeVar("T")

MEASURES = "MEASURE" in os.environ
"""Copied from tests/stopwatch.py; this module is also part of a program of its own."""
CPU_S_MAX = 2.0
"""A multiple of the cost of the slowest input, because memory is traced and, under atheris, every branch counted."""
MEMORY_FACTOR_MAX = 64
"""Memory per byte of input: Python objects for a list whose entries have a byte each."""
MEMORY_BYTES_FREE = 4 << 20
"""Whatever the size: buffers, the memory that the head of a frame alone may ask for, caches."""

_CODES = all_errors()


@contextmanager
def within_budget(size: int) -> Iterator[None]:
    """Check that the block takes no more of Python's memory at once, and no more time, than an input of `size` bytes
    may.
    """
    # Starting and stopping costs some KiB for good: who runs for an hour starts it once.
    is_traced = tracemalloc.is_tracing()
    if not is_traced:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    began_s = time.process_time() if MEASURES else 0.0
    try:
        yield
        took_s = time.process_time() - began_s if MEASURES else 0.0
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not is_traced:
            tracemalloc.stop()
    assert took_s < CPU_S_MAX, f"{size} bytes took {took_s:.2f} s"
    assert peak < MEMORY_FACTOR_MAX * size + MEMORY_BYTES_FREE, f"{size} bytes took {peak} bytes of memory"


def outcome(work: Callable[[], T]) -> T | str:
    """The result of `work`, or the code of its LinnError; any other exception is a bug, and is raised."""
    try:
        return work()
    except LinnError as error:
        return code_of(error)


def code_of(error: LinnError) -> str:
    """The code of an error, which is known."""
    assert _CODES[error.code] is type(error)
    return error.code


def said(error: LinnError) -> str:
    """The text of an error, which is one line that a terminal can show."""
    code_of(error)
    assert error.text.isprintable(), error.text
    return error.text
