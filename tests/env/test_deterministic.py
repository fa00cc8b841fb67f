"""The same seed gives the same run: in one process, and in processes that hash differently."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from linn.core.env.env import Stream
from linn.core.errors.tree import LinnError
from linn.testing.deterministic import deterministic_schedule, run_simulation
from linn.testing.sim_env import SimEnv


async def traced(env: SimEnv) -> list[object]:
    """The trace of three clients, a logging broker, a clock and a crash: all that a seed decides, in order."""
    trace: list[object] = []

    async def client(number: int) -> None:
        here = SimEnv(number, name=f"client-{number}", world=env.world)
        stream = await here.net.connect("broker:5466")
        for _ in range(5):
            await here.clock.sleep(here.rng.uniform(0, 0.01))
            await stream.send([here.rng.bytes(here.rng.integer(3000))])
            trace.append(("sent", number, here.clock.monotonic()))
        await stream.aclose()

    async def serve(stream: Stream, env: SimEnv) -> None:
        file, buffer = env.disk.open(f"/{stream.peer}", create=True), memoryview(bytearray(4096))
        while count := await stream.receive_into(buffer):
            file.write([buffer[:count]])
            trace.append((stream.peer, count, env.clock.now_ms()))
            await file.sync()

    async def broker(env: SimEnv) -> None:
        listener = await env.net.listen("broker:5466")
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(serve, await listener.accept(), env)

    env.disk.crash_at = 40
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.run_until_death, broker)
        await wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(client, number)
    after = env.restart()
    trace.extend(env.disk.operations)
    trace.extend((name, after.disk.open(f"/{name}").size()) for name in after.disk.list_dir("/"))
    return trace


def test_the_private_names_of_trio_exist() -> None:
    assert isinstance(trio._core._run._r, random.Random)
    assert isinstance(trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    trio.run(_see_that_a_waiting_task_is_known)


async def _see_that_a_waiting_task_is_known() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_all_tasks_blocked, 0.001)
        for _ in range(2):  # In one turn it may run after this task.
            await trio.lowlevel.checkpoint()
        assert trio._core._run.GLOBAL_RUN_CONTEXT.runner.waiting_for_idle


@pytest.mark.parametrize("seed", range(5))
def test_time_jumps_as_on_trios_own_clock(seed: int) -> None:
    with deterministic_schedule(seed):
        assert run_simulation(seed, traced) == trio.run(traced, SimEnv(seed), clock=MockClock(autojump_threshold=0))


def test_no_time_passes_while_a_task_waits_for_all_others_to_be_blocked() -> None:
    async def wait(env: SimEnv) -> list[float]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            await wait_all_tasks_blocked()
            before_s = env.clock.monotonic()
        return [before_s, env.clock.monotonic()]

    assert run_simulation(0, wait) == [0, 10]


async def schedule(env: SimEnv) -> list[int]:
    order: list[int] = []

    async def note(number: int) -> None:
        for _ in range(3):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(note, number)
    return order


def test_the_seed_decides_trios_schedule() -> None:
    assert run_simulation(1, schedule) == run_simulation(1, schedule)
    assert len({tuple(run_simulation(seed, schedule)) for seed in range(10)}) == 10


def test_a_simulation_leaves_trios_scheduler_as_it_was() -> None:
    state = trio._core._run._r.getstate()
    run_simulation(1, schedule)
    assert trio._core._run._r.getstate() == state


def test_a_seed_gives_the_same_trace_for_any_hash_seed() -> None:
    traces = []
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        traces.append(run.stdout)
    assert traces[0] == traces[1]
    assert traces[0].count("sync end") > 20, "something happened"
    assert len({str(run_simulation(seed, traced)) for seed in range(5)}) == 5, "and the seed decided what"


def test_a_failure_names_the_seed_that_replays_it() -> None:
    async def fail(env: SimEnv) -> None:
        raise LinnError("broken")

    with pytest.raises(LinnError) as caught:
        run_simulation(1234, fail)
    assert any("1234" in note for note in caught.value.__notes__)


def test_a_simulation_that_is_stuck_ends() -> None:
    async def wait_for_ever(env: SimEnv) -> None:
        await trio.sleep_forever()

    with pytest.raises(trio.TooSlowError):
        run_simulation(0, wait_for_ever)


def test_a_simulated_hour_takes_no_time() -> None:
    async def sleep(env: SimEnv) -> int:
        before_ms = env.clock.now_ms()
        await env.clock.sleep(3600)
        return env.clock.now_ms() - before_ms

    assert run_simulation(0, sleep) == 3_600_000


if __name__ == "__main__":
    for seed in range(5):
        print(run_simulation(seed, traced))
