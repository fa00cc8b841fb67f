"""Deterministic runs of trio: the same seed gives the same schedule, in any process.

trio shuffles ready tasks on purpose. Two of its private names make the shuffle repeatable, and one lets time jump; a
test asserts that they exist and work. With virtual time and a `SimEnv` everything follows from the seed, as long as the
code under test does not iterate over sets or sort by `id`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from linn.testing.sim_env import SimEnv

T = TypeVar("T")
_SCHEDULER = trio._core._run
_FLAG = "_ALLOW_DETERMINISTIC_SCHEDULING"
VIRTUAL_S_MAX = 24 * 3600.0
"""Virtual time after which a simulation counts as stuck."""


class VirtualTime(trio.abc.Clock):
    """An autojumping clock like `MockClock`, at one turn of trio's loop for each jump instead of two."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def start_clock(self) -> None:
        """Do nothing: time passes in jumps only."""

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        # trio asks only if no task can run; those in `wait_all_tasks_blocked` run before time passes.
        if deadline == math.inf or _SCHEDULER.GLOBAL_RUN_CONTEXT.runner.waiting_for_idle:
            return VIRTUAL_S_MAX
        while self._now_s < deadline:  # What is added may round to a little less.
            self._now_s += deadline - self._now_s
        return 0

    def jump(self, seconds: float) -> None:
        """Let time pass in which no task runs."""
        self._now_s += seconds


@contextmanager
def deterministic_schedule(seed: int) -> Iterator[None]:
    """Make the schedule of a `trio.run` in the block follow from `seed`; trio's scheduler is restored afterwards."""
    before, state = getattr(_SCHEDULER, _FLAG), _SCHEDULER._r.getstate()
    setattr(_SCHEDULER, _FLAG, True)
    _SCHEDULER._r.seed(seed)
    try:
        yield
    finally:
        setattr(_SCHEDULER, _FLAG, before)
        _SCHEDULER._r.setstate(state)


def run_simulation(
    seed: int,
    scenario: Callable[[SimEnv], Awaitable[T]],
    *,
    virtual_s_max: float = VIRTUAL_S_MAX,
) -> T:
    """Run `scenario(SimEnv(seed))` in virtual time; returns its result.

    Raises:
        The errors of the scenario, with a note that names the seed. A scenario that waits for an event that never
        happens ends with trio.TooSlowError when `virtual_s_max` have passed, which takes no real time.
    """

    async def main() -> T:
        with trio.fail_after(virtual_s_max):
            return await scenario(SimEnv(seed))

    try:
        with deterministic_schedule(seed):
            return trio.run(main, clock=VirtualTime())
    except BaseException as error:
        error.add_note(f"seed {seed} replays this simulation: run_simulation({seed}, ...)")
        raise
