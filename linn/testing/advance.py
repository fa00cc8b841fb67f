"""Advancing the clock of a test without waiting, in the loop of a `MockClock`: everything falls due in order, at its
time.

Only the broker's periodic tasks, which run every few seconds, run less often meanwhile, or a day would be a hundred
thousand runs. They run once more at the end.
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
"""Compared by identity, so that a lease of ten seconds is none of them."""
LOOKS = 200
"""Runs of such a task in one advance."""
_SETTLE_S = 0.05
"""The longest wait at the end of an advance for a loop that is never idle."""


def seconds_of(days: float, hours: float, minutes: float, seconds: float) -> float:
    """The sum in seconds. Raises ValueError if it is negative."""
    total_s = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    if total_s < 0:
        raise ValueError("time does not go backwards")
    return total_s


class Advance:
    """The time that a test lets pass for one broker."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._look_s = 0.0

    def sleep_s(self, seconds: float, clock: Clock) -> float:
        """The duration to sleep now instead of `seconds`."""
        left_s = self._until - clock.monotonic()
        if left_s <= 0 or not any(seconds is interval for interval in CHORE_INTERVALS_S):
            return seconds
        return min(max(seconds, self._look_s), left_s)

    async def run(self, total_s: float, clock: Clock) -> None:
        """Let `total_s` seconds pass. Cancellation: some of them have."""
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
