"""One timer for many deadlines: a task sleeps until the earliest one; without a deadline there is no task."""

from __future__ import annotations

from collections.abc import Callable

import trio

from linn.core.env.env import Clock, Spawn


class Alarm:
    """A timer that calls `ring` at a deadline; `ring` returns the next deadline."""

    def __init__(self, clock: Clock, spawn: Spawn, ring: Callable[[], float | None]) -> None:
        self._clock = clock
        self._spawn = spawn
        self._ring = ring
        self._at: float | None = None
        self._scope: trio.CancelScope | None = None

    def set(self, deadline: float) -> None:
        """Ring at `deadline` at the latest."""
        if self._at is not None and self._at <= deadline:
            return
        self._at = deadline
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._spawn(self._run)
        else:
            self._scope.cancel()

    def cancel(self) -> None:
        """Cancel the deadline until the next `set`."""
        self._at = None
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        while self._at is not None:
            scope = self._scope = trio.CancelScope()
            with scope:
                await self._clock.sleep(max(0.0, self._at - self._clock.monotonic()))
            if scope.cancelled_caught or self._at is None:
                continue
            self._at = self._ring()
        self._scope = None
