"""A watch over the wall clock that notices when it was set, by comparing it with the monotonic clock."""

from __future__ import annotations

import logging

from linn.core.env.env import Clock

JUMP_MS_MIN = 60_000
"""Smallest jump that counts; smaller changes are routine corrections."""

logger = logging.getLogger("linn.clock")


class ClockWatch:
    """Compares the wall clock with the monotonic clock at each poll."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = self._now_difference_ms()

    def _now_difference_ms(self) -> int:
        return self._clock.now_ms() - round(1000 * self._clock.monotonic())

    def look(self) -> int:
        """Warn if the wall clock was set since the last poll; returns by how many ms it was set forward, or 0."""
        before, self._difference_ms = self._difference_ms, self._now_difference_ms()
        jump_ms = self._difference_ms - before
        if abs(jump_ms) < JUMP_MS_MIN:
            return 0
        text = "the wall clock jumped %(way)s by %(jump_s)d s: it was set, or the machine slept"
        about = {"way": "forward" if jump_ms > 0 else "back", "jump_s": abs(jump_ms) // 1000}
        logger.warning(text, about)
        return max(0, jump_ms)
