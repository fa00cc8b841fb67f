from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import trio
from stopwatch import at_most
from trio.testing import MockClock

from linn.core.errors.tree import ConnectionLost, DiskFull, RequestTimeout
from linn.testing import VirtualWorld

JOBS = {"jobs": {"kind": "queue", "lease": "1h", "redelivery_delay": "10m"}}
KEPT = {"kept": {"kind": "stream", "storage": "safe"}}
SAFE = '[storage.safe]\nengine = "segmented-log"\nfsync = "always"\n'
DAY_S_MAX = 2.0
"""Limit of real time for a day; it takes a twentieth of a second on an idle machine."""


async def test_a_broker_lives_in_the_tests_own_loop(autojump_clock: MockClock) -> None:
    async with VirtualWorld(topics=JOBS) as world:
        async with world.connect() as client, client.consumer("jobs") as consumer:
            await world.publish("jobs", b"dig", b"sow")
            assert [message.value for message in await world.wait_records("jobs", 2)] == [b"dig", b"sow"]
            await (await anext(consumer)).ack()
            await (await anext(consumer)).ack()
            await world.wait_settled("jobs")
            assert await world.records("jobs") == []


@pytest.mark.measured
def test_a_day_passes_in_no_time_and_everything_falls_due_at_its_time() -> None:
    async def scenario(world: VirtualWorld) -> list[float]:
        hours = []

        async def work() -> None:
            async with world.connect() as client, client.consumer("jobs") as consumer:
                async for _ in consumer:
                    hours.append(trio.current_time() / 3600)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await world.publish("jobs", b"dig")
            before = trio.current_time()
            await world.advance(hours=24)
            assert trio.current_time() - before == pytest.approx(24 * 3600)
            nursery.cancel_scope.cancel()
        return hours

    with at_most(wall_s=DAY_S_MAX):
        hours = VirtualWorld(topics=JOBS).run(scenario)
    # Each lease lasts an hour, and ten to eleven minutes lie between it and the next.
    assert hours[0] == pytest.approx(0, abs=0.001)
    assert 24 - hours[-1] < 71 / 60
    pauses = [60 * (later - earlier) for earlier, later in pairwise(hours)]
    assert 69.99 < min(pauses) < max(pauses) < 71.01
    assert max(pauses) - min(pauses) > 0.1, "with a jitter"


def test_the_wall_clock_advances_too() -> None:
    async def scenario(world: VirtualWorld) -> None:
        await world.publish("prices", b"1")
        await world.advance(hours=23)
        assert len(await world.records("prices")) == 1
        await world.advance(hours=2)
        assert await world.records("prices") == []

    VirtualWorld(topics={"prices": {"kind": "stream", "retention": "1d"}}).run(scenario)


def test_retention_has_looked_when_the_time_is_over() -> None:
    async def scenario(world: VirtualWorld) -> None:
        await world.publish("prices", b"1")
        await world.advance(hours=24, seconds=1)
        assert await world.records("prices") == []

    VirtualWorld(topics={"prices": {"kind": "stream", "retention": "1d"}}).run(scenario)


def test_a_short_time_passes_exactly() -> None:
    async def scenario(world: VirtualWorld) -> None:
        before = trio.current_time()
        await world.advance(seconds=1.5)
        assert trio.current_time() - before == pytest.approx(1.5)
        with pytest.raises(ValueError, match="backwards"):
            await world.advance(hours=-1)

    VirtualWorld().run(scenario)


def test_confirmed_records_survive_a_power_loss_unless_in_memory() -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect() as client, client.producer("kept") as producer:
            await producer.publish(b"before")
            await world.publish("jobs", b"dig")
            world.lose_power()
            assert world.summary() == "the broker is down"
            with pytest.raises(ConnectionLost, match="restart"):
                await world.records("kept")
            await world.restart()
            await producer.publish(b"after")
        assert [message.value for message in await world.records("kept")] == [b"before", b"after"]
        assert await world.records("jobs") == []
        world.kill()
        await world.restart()
        assert len(await world.records("kept")) == 2

    for seed in range(3):
        VirtualWorld(SAFE, topics=JOBS | KEPT, seed=seed).run(scenario)


def test_a_full_disk_refuses_and_recovers() -> None:
    async def scenario(world: VirtualWorld) -> None:
        world.fill_disk()
        with pytest.raises(DiskFull):
            await world.publish("kept", b"too much")
        world.free_disk()
        await world.publish("kept", b"enough")
        assert [message.value for message in await world.records("kept")] == [b"enough"]

    VirtualWorld(SAFE, topics=KEPT).run(scenario)


def test_a_cut_network_holds_everything_back() -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect(request_timeout_s=5) as client:
            world.cut_network()
            with pytest.raises(RequestTimeout):
                await client.describe("jobs")
            world.heal_network()
            assert (await client.describe("jobs")).topics[0].kind == "queue"

    VirtualWorld(topics=JOBS).run(scenario)


def test_a_wait_in_vain_takes_no_real_time() -> None:
    async def scenario(world: VirtualWorld) -> None:
        await world.publish("jobs", b"dig")
        with pytest.raises(RequestTimeout, match=r'(?s)60 virtual s for "jobs" to be settled.*1 unsettled'):
            await world.wait_settled("jobs", timeout_s=60)

    VirtualWorld(topics=JOBS).run(scenario)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_is_the_same_story(seed: int) -> None:
    async def scenario(world: VirtualWorld) -> list[float]:
        moments = []
        async with world.connect() as client, client.consumer("jobs") as consumer:
            for number in range(5):
                await world.publish("jobs", b"%d" % number)
                await anext(consumer)
                moments.append(trio.current_time())
        return moments

    assert VirtualWorld(topics=JOBS, seed=seed).run(scenario) == VirtualWorld(topics=JOBS, seed=seed).run(scenario)


def test_an_error_leaves_the_world_as_it_is() -> None:
    async def scenario(world: VirtualWorld) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        VirtualWorld(topics=JOBS).run(scenario)


def test_a_world_continues_from_its_last_state() -> None:
    async def publish(world: VirtualWorld) -> None:
        await world.publish("kept", b"1")

    async def look(world: VirtualWorld) -> int:
        return len(await world.records("kept"))

    world = VirtualWorld(SAFE, topics=KEPT)
    world.run(publish)
    assert "kept (stream): 1 published, 1 kept" in world.summary()
    assert world.run(look) == 1


async def test_real_time_is_refused() -> None:
    with pytest.raises(RuntimeError, match="autojump_clock"):
        await VirtualWorld().__aenter__()


def test_asyncio_is_refused() -> None:
    with pytest.raises(RuntimeError, match="autojump_clock"):
        asyncio.run(VirtualWorld().__aenter__())  # type: ignore[arg-type]
