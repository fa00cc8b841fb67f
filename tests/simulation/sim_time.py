"""Virtual time for runs in which nobody waits for the loop to be idle."""

from __future__ import annotations

import math

import trio

_FOREVER_S = 24 * 3600.0
"""The length of a wait for nothing but outside events: trio never waits longer."""


class SimTime(trio.abc.Clock):
    """An autojumping clock like `MockClock`, at one turn of trio's loop per jump instead of two.

    Trio asks how long to sleep only if no task can run, and when it gets the answer that time has already come. It also
    asks if a task is in `wait_all_tasks_blocked`, which on this clock would wait for all deadlines.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def start_clock(self) -> None:
        """Do nothing: time passes in jumps only."""

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == math.inf:
            return _FOREVER_S
        while self._now_s < deadline:  # What is added may round to a little less.
            self._now_s += deadline - self._now_s
        return 0
