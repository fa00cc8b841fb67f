"""The life and death of a simulated process."""

from __future__ import annotations

import pytest
import trio
from simulated_time import simulated

from linn.core.errors.tree import LinnError
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv


@simulated
async def test_a_dying_process_saves_nothing_and_sends_nothing(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        stream = await env.net.connect("peer:1")
        file = env.disk.open("/log", create=True)
        await env.disk.sync_dir("/")
        try:
            await env.clock.sleep(3600)
        finally:
            with trio.CancelScope(shield=True):
                try:
                    file.write([b"saved"])
                finally:
                    await stream.send([b"farewell"])

    peer = SimEnv(0, name="peer", world=env.world)
    listener = await peer.net.listen("peer:1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.run_until_death, process)
        stream = await listener.accept()
        await trio.sleep(1)
        env.crash()
    assert env.is_dead
    assert trio.current_time() < 3600, "the process was cancelled"
    after = env.restart()
    assert after.disk.open("/log").size() == 0
    with pytest.raises(LinnError, match="reset"):
        await stream.receive_into(memoryview(bytearray(10)))


def test_run_until_death_tells_a_death_from_an_end_and_from_an_error() -> None:
    async def end(env: SimEnv) -> None:
        env.disk.make_dir("/data")

    async def fail(env: SimEnv) -> None:
        raise LinnError("broken")

    async def scenario(env: SimEnv) -> None:
        assert not await env.run_until_death(end)
        with pytest.raises(LinnError):
            await env.run_until_death(fail)
        env.disk.crash_at = 1
        env.disk.unlink("/data/none")
        assert await env.run_until_death(lambda env: end_in_a_nursery(env))

    async def end_in_a_nursery(env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            env.disk.open("/file", create=True)

    run_simulation(0, scenario)


@simulated
async def test_the_wall_clock_jumps_and_monotonic_does_not(env: SimEnv) -> None:
    wall_ms, monotonic = env.clock.now_ms(), env.clock.monotonic()
    env.clock.jump(-60_000)
    assert env.clock.now_ms() == wall_ms - 60_000
    assert env.clock.monotonic() == monotonic
    env.kill()
    assert env.restart().clock.now_ms() == wall_ms - 60_000


@simulated
async def test_a_wall_clock_that_drifts_goes_on_from_where_it_was(env: SimEnv) -> None:
    await trio.sleep(100)
    wall_ms = env.clock.now_ms()
    env.clock.drift(1.1)
    assert abs(env.clock.now_ms() - wall_ms) <= 1
    await trio.sleep(100)
    assert abs(env.clock.now_ms() - wall_ms - 110_000) <= 1
    env.clock.drift(1)
    await trio.sleep(100)
    assert abs(env.clock.now_ms() - wall_ms - 210_000) <= 1
    assert env.clock.monotonic() == trio.current_time()


@simulated
async def test_a_machine_whose_disk_was_replaced_has_an_empty_one_and_draws_new_numbers(env: SimEnv) -> None:
    env.disk.open("/file", create=True).close()
    boot, drawn = env.process.boot_id(), env.rng.bytes(8)
    env.kill()
    after = env.restart(on_new_disk=True)
    assert not after.disk.exists("/file")
    assert after.process.boot_id() != boot
    assert after.rng.bytes(8) != drawn


def test_nodes_of_one_seed_draw_different_numbers() -> None:
    first = SimEnv(3, name="a")
    second = SimEnv(3, name="b", world=first.world)
    assert first.rng.bytes(16) != second.rng.bytes(16)
    assert SimEnv(3, name="a").rng.bytes(16) == SimEnv(3, name="a").rng.bytes(16)
