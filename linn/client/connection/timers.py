"""Timers: callbacks by time, run by one task. Callbacks are synchronous and never raise.

Separate because timers do not depend on connections."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import anyio

from linn.core.env.env import Clock


class Timers:
    """Heap of (time, callback). Entries are never removed early: a callback checks whether it still matters."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = anyio.Event()

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay_s` seconds; with 0, after other tasks have had their turn."""
        when = self._clock.monotonic() + delay_s
        heapq.heappush(self._due, (when, next(self._numbers), callback))
        if self._due[0][0] == when:
            self._changed.set()

    async def run(self) -> None:
        """Run callbacks until cancelled."""
        while True:
            await self._wait()
            now = self._clock.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()

    async def _wait(self) -> None:
        self._changed = anyio.Event()
        if not self._due:
            await self._changed.wait()
            return
        with anyio.move_on_after(max(0.0, self._due[0][0] - self._clock.monotonic())):
            await self._changed.wait()
