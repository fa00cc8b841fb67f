"""Advancing the clock of a test without waiting, in the loop of a `MockClock`: timers fire in order, at their times.

Only the broker's periodic tasks run less often meanwhile, as a day has a hundred thousand of their intervals. They run
once more at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from linn.core.broker import broker
from linn.core.env.env import Clock
from linn.core.loop import lag as loop_lag

CHORE_INTERVALS_S = (broker.RETENTION_INTERVAL_S, loop_lag.INTERVAL_S)
"""Intervals of periodic tasks. They are compared by identity: a lease of ten seconds is no such interval."""
LOOKS = 200
"""Runs of a periodic task in one advance."""
_SETTLE_S = 0.05
"""Time limit for a loop to become idle at the end of an advance."""


def seconds_of(days: float, hours: float, minutes: float, seconds: float) -> float:
    """Return the sum in seconds. Raises ValueError if it is negative."""
    total_s = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    if total_s < 0:
        raise ValueError("time does not go backwards")
    return total_s


class Advance:
    """Advance of one broker's time by a test."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._look_s = 0.0

    def sleep_s(self, seconds: float, clock: Clock) -> float:
        """Return the duration to sleep instead of `seconds`."""
        left_s = self._until - clock.monotonic()
        if left_s <= 0 or not any(seconds is interval for interval in CHORE_INTERVALS_S):
            return seconds
        return min(max(seconds, self._look_s), left_s)

    async def run(self, total_s: float, clock: Clock) -> None:
        """Let `total_s` seconds pass. Cancellation: a part of the time has passed."""
        with _jumping():
            self._until, self._look_s = clock.monotonic() + total_s, total_s / LOOKS
            try:
                await clock.sleep(total_s)
            finally:
                self._until = -math.inf
        with trio.move_on_after(_SETTLE_S):
            await wait_all_tasks_blocked()


@contextmanager
def _jumping() -> Iterator[None]:
    """Make the loop's clock jump to the next deadline whenever the loop is idle."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    before, clock.autojump_threshold = clock.autojump_threshold, 0
    try:
        yield
    finally:
        clock.autojump_threshold = before
