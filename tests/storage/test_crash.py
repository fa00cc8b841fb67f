"""The segmented log loses nothing that was durable, wherever its disk stops."""

from __future__ import annotations

import random

import pytest
from crash_run import CrashRun

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

SEEDS_AT_EVERY_OPERATION = 100
SEEDS_OF_SEVERAL_LIVES = 2000
CHUNKS = 10


def seeds_of(chunk: int, count: int) -> range:
    return range(chunk * count // CHUNKS, (chunk + 1) * count // CHUNKS)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_power_loss_at_every_disk_operation(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_AT_EVERY_OPERATION):
        run_simulation(seed, lambda _, seed=seed: crash_everywhere(seed))  # type: ignore[misc]


async def crash_everywhere(seed: int) -> None:
    """Run one workload again and again, dying one operation later each time, until it lives through it."""
    crash_at, died = 0, True
    while died:
        run = CrashRun(seed, SimEnv(seed))
        try:
            died = await run.live(10, crash_at)
            if not died:
                run.env.crash()
            await run.rise(lost_power=True)
            await run.open_twice()
        except Exception as error:
            error.add_note(f"seed {seed}, power lost at operation {crash_at}")
            raise
        crash_at += 1
    assert crash_at > 20


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_several_lives_and_deaths(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_OF_SEVERAL_LIVES):
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed))  # type: ignore[misc]


async def live_and_die(seed: int) -> None:
    rng = random.Random(f"{seed}/deaths")
    run = CrashRun(f"{seed}/lives", SimEnv(seed))
    for _ in range(3):
        died = await run.live(12, rng.choice((None, rng.randrange(150))))
        killed = False
        if not died:
            killed = rng.random() < 0.4
            if not killed and rng.random() < 0.3:
                await run.fail_a_sync()
            if killed:
                run.env.kill()
            else:
                run.env.crash()
        await run.rise(lost_power=not killed)
    await run.open_twice()
