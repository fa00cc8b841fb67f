"""The segmented log loses nothing that was durable, wherever its disk stops."""

from __future__ import annotations

import random

import pytest
from crash_run import CrashRun
from replica_run import ReplicaRun
from thin_run import ThinRun

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

SEEDS_AT_EVERY_OPERATION = 24
SEEDS_OF_SEVERAL_LIVES = 600
CHUNKS = 8
EACH = [pytest.param(0, marks=pytest.mark.quick), *range(1, CHUNKS)]


def seeds_of(chunk: int, count: int) -> range:
    return range(chunk * count // CHUNKS, (chunk + 1) * count // CHUNKS)


@pytest.mark.parametrize("chunk", EACH)
def test_power_loss_at_every_disk_operation(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_AT_EVERY_OPERATION):
        run_simulation(seed, lambda _, seed=seed: crash_everywhere(seed))  # type: ignore[misc]


@pytest.mark.parametrize("chunk", EACH)
def test_power_loss_of_a_replica_at_every_disk_operation(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_AT_EVERY_OPERATION):
        run_simulation(seed, lambda _, seed=seed: crash_everywhere(seed, ReplicaRun))  # type: ignore[misc]


async def crash_everywhere(seed: int, kind: type[CrashRun] = CrashRun) -> None:
    """Run one workload again and again, dying one operation later each time, until it lives through it."""
    crash_at, died = 0, True
    while died:
        run = kind(seed, SimEnv(seed))
        await run.make_data_folder()
        try:
            died = await run.live(10, crash_at)
            if not died:
                run.env.crash()
            await run.rise()
            await run.open_twice()
        except Exception as error:
            error.add_note(f"seed {seed}, power lost at operation {crash_at}")
            raise
        crash_at += 1
    assert crash_at > 5


@pytest.mark.parametrize("chunk", EACH)
def test_several_lives_and_deaths(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_OF_SEVERAL_LIVES):
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed))  # type: ignore[misc]


@pytest.mark.parametrize("chunk", EACH)
def test_several_lives_and_deaths_of_a_replica(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_OF_SEVERAL_LIVES):
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed, ReplicaRun))  # type: ignore[misc]


@pytest.mark.parametrize("chunk", EACH)
def test_power_loss_of_a_thinned_log_at_every_disk_operation(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_AT_EVERY_OPERATION):
        run_simulation(seed, lambda _, seed=seed: crash_everywhere(seed, ThinRun))  # type: ignore[misc]


@pytest.mark.parametrize("chunk", EACH)
def test_several_lives_and_deaths_of_a_thinned_log(chunk: int) -> None:
    for seed in seeds_of(chunk, SEEDS_OF_SEVERAL_LIVES):
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed, ThinRun))  # type: ignore[misc]


@pytest.mark.soak(seeds=20_000, chunk=200)
def test_many_more_lives_and_deaths(seeds: range) -> None:
    for seed in seeds:
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed))  # type: ignore[misc]
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed, ReplicaRun))  # type: ignore[misc]
        run_simulation(seed, lambda _, seed=seed: live_and_die(seed, ThinRun))  # type: ignore[misc]


async def live_and_die(seed: int, kind: type[CrashRun] = CrashRun) -> None:
    rng = random.Random(f"{seed}/deaths")
    run = kind(f"{seed}/lives", SimEnv(seed))
    await run.make_data_folder()
    for _ in range(3):
        end = rng.choice(("power lost in an operation", "power lost", "sync failed", "killed at once", "killed"))
        crash_at = rng.randrange(150) if end == "power lost in an operation" else None
        kill_after_s = rng.random() / 30 if end == "killed at once" else None
        died = await run.live(12, crash_at, kill_after_s)
        if not died and end == "sync failed":
            await run.fail_a_sync()
        if not died and end.startswith("killed"):
            run.env.kill()
        run.env.crash()
        await run.rise()
    await run.open_twice()
