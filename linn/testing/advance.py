"""Letting time pass at once, in the loop of a `MockClock`: everything falls due in its order, at its time.

Only the broker's chores that look around every few seconds do so less often meanwhile, or a day would be a hundred
thousand looks. They look once more at the end.
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
"""Told by the very objects, so that a lease of ten seconds is none of them."""
LOOKS = 200
"""How often such a chore looks in the course of one advance."""
_SETTLE_S = 0.05
"""The longest that an advance waits at its end for a loop that is never idle."""


def seconds_of(days: float, hours: float, minutes: float, seconds: float) -> float:
    """The sum. Raises ValueError where it is negative."""
    total_s = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    if total_s < 0:
        raise ValueError("time does not go backwards")
    return total_s


class Advance:
    """The time that a test lets pass, of one broker."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._look_s = 0.0

    def sleep_s(self, seconds: float, clock: Clock) -> float:
        """How long somebody who would sleep for `seconds` is to sleep now."""
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
    """Have the loop's clock jump to what is due next whenever nothing else is to be done."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    before, clock.autojump_threshold = clock.autojump_threshold, 0
    try:
        yield
    finally:
        clock.autojump_threshold = before
