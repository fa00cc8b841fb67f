"""Wall time without jumps."""

from __future__ import annotations

import trio
from simulated_time import simulated

from linn.core.env.steady_clock import SteadyClock
from linn.testing.sim_env import SimEnv


@simulated
async def test_a_steady_clock_has_the_wall_time_of_its_making_and_passes_over_jumps(env: SimEnv) -> None:
    await trio.sleep(100)
    clock = SteadyClock(env.clock)
    began = env.clock.now_ms()
    assert round(clock.monotonic() * 1000) == began
    env.clock.jump(-86_400_000)
    await clock.sleep(5)
    assert round(clock.monotonic() * 1000) == began + 5_000
    assert clock.now_ms() == began + 5_000 - 86_400_000
    assert round(SteadyClock(env.clock).monotonic() * 1000) == clock.now_ms()
