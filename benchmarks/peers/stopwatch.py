"""The cost of a stretch of work: seconds, and CPU time of both sides."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.load import cpu_s


class Stopwatch:
    """Use it with `with`, around the work and nothing else; `begin` and `end` where a block is in the way.

    The client is this process with all its threads.
    """

    def __init__(self, server_pids: Sequence[int]) -> None:
        self.seconds = 0.0
        self.server_cpu_s = 0.0
        self.client_cpu_s = 0.0
        self._pids = server_pids
        self._before = (0.0, 0.0, 0.0)

    def begin(self) -> None:
        """Start."""
        self._before = self._now()

    def end(self) -> None:
        """Stop."""
        self.seconds, self.server_cpu_s, self.client_cpu_s = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), sum(map(cpu_s, self._pids)), time.process_time()

    def __enter__(self) -> Stopwatch:
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
