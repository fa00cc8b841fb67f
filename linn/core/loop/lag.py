"""How late the loop is: what a task waits for its turn beyond the time that it asked for."""

from __future__ import annotations

from linn.core.env.env import Clock
from linn.core.loop.histogram import Histogram

INTERVAL_S = 1.0
"""Often enough that a loop which is blocked for seconds shows in every scrape, and nothing beside all other work."""


class LoopLag:
    """A probe that sleeps and looks how late it wakes."""

    def __init__(self) -> None:
        self.seconds = Histogram()

    async def watch(self, clock: Clock) -> None:
        """Observe until cancelled."""
        while True:
            due = clock.monotonic() + INTERVAL_S
            await clock.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, clock.monotonic() - due))
