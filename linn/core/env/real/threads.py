"""RealThreads: threads of this process for computations that free the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from linn.core.env.real.disk import in_thread

T = TypeVar("T")
THREADS_MAX = 2
"""Computations at a time. More would take the processor from the loop when thousands of clients come back at once."""


class RealThreads:
    """A limited number of threads."""

    def __init__(self) -> None:
        self._limiter: trio.CapacityLimiter | None = None

    async def run(self, work: Callable[[], T]) -> T:
        if self._limiter is None:  # Made in the loop that uses it.
            self._limiter = trio.CapacityLimiter(THREADS_MAX)
        return await in_thread(work, self._limiter)
