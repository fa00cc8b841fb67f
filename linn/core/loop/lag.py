"""Measurement of the loop's lag: the delay of a task's wake-up beyond the requested time."""

from __future__ import annotations

from linn.core.env.env import Clock
from linn.core.loop.histogram import Histogram

INTERVAL_S = 1.0
"""Interval of the probe: every scrape shows a loop that was blocked for seconds, at negligible cost."""


class LoopLag:
    """A probe that sleeps and measures its late wake-up."""

    def __init__(self) -> None:
        self.seconds = Histogram()

    async def watch(self, clock: Clock) -> None:
        """Observe until cancelled."""
        while True:
            due = clock.monotonic() + INTERVAL_S
            await clock.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, clock.monotonic() - due))
