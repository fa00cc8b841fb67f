"""Delays, cuts and resets of the simulated network, all in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from linn.core.env.env import Stream
from linn.core.errors.tree import ConnectFailed, ConnectionLost
from linn.testing.deterministic import run_simulation
from linn.testing.sim_device import SimulatedCrash
from linn.testing.sim_env import SimEnv
from linn.testing.sim_pipe import PIPE_BYTES_MAX

ADDRESS = "broker:5466"
Scenario = Callable[[SimEnv, SimEnv, Stream, Stream], Awaitable[object]]


def between_two_nodes(scenario: Scenario, seed: int = 0) -> object:
    """Run `scenario(broker, client, broker's stream, client's stream)`."""

    async def main(broker: SimEnv) -> object:
        client = SimEnv(seed, name="client", world=broker.world)
        listener = await broker.net.listen(ADDRESS)
        mine = await client.net.connect(ADDRESS)
        return await scenario(broker, client, await listener.accept(), mine)

    return run_simulation(seed, main)


def two_nodes(scenario: Scenario) -> Callable[[], object]:
    """A test of such a scenario."""
    return lambda: between_two_nodes(scenario)


async def receive(stream: Stream, size: int = 65536) -> bytes:
    buffer = bytearray(size)
    count = await stream.receive_into(memoryview(buffer))
    return bytes(buffer[:count])


def test_bytes_take_time_and_come_in_chunks_that_the_seed_chooses() -> None:
    async def scenario(broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream) -> list[int]:
        began = trio.current_time()
        await mine.send([bytes(500), bytes(500)])
        sizes = [len(await receive(theirs))]
        assert trio.current_time() > began
        while sum(sizes) < 1000:
            sizes.append(len(await receive(theirs)))
        return sizes

    chunks = [between_two_nodes(scenario, seed) for seed in range(40)]
    assert [1000] in chunks, "two sends in one receive"
    assert any(len(sizes) > 2 for sizes in chunks if isinstance(sizes, list)), "one send in several receives"
    assert chunks == [between_two_nodes(scenario, seed) for seed in range(40)]


@two_nodes
async def test_a_direction_holds_a_bounded_number_of_bytes(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    with trio.move_on_after(60):
        await mine.send([bytes(PIPE_BYTES_MAX)])
        await mine.send([b"one too many"])
    await mine.aclose()
    received = 0
    while data := await receive(theirs):
        received += len(data)
    assert received == PIPE_BYTES_MAX


@two_nodes
async def test_a_cut_link_holds_everything_back_and_loses_nothing(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    broker.world.cut("node", "client")
    await mine.send([b"held back"])
    await mine.aclose()
    await trio.sleep(60)
    with trio.move_on_after(3600) as scope:
        await receive(theirs)
    assert scope.cancelled_caught
    broker.world.heal("client", "node")
    received = b""
    while data := await receive(theirs):
        received += data
    assert received == b"held back"


@two_nodes
async def test_connecting_across_a_cut_waits_for_the_heal_and_not_for_ever(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    broker.world.cut("node", "client")
    with pytest.raises(ConnectFailed, match="timed out"):
        await client.net.connect(ADDRESS)

    async def heal() -> None:
        await trio.sleep(5)
        broker.world.heal("node", "client")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(heal)
        began = trio.current_time()
        await client.net.connect(ADDRESS)
        assert trio.current_time() - began >= 5


@two_nodes
async def test_a_slow_link_delays_and_limits(broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream) -> None:
    broker.world.slow("node", "client", delay_s=(1.0, 1.0), bytes_per_s=1000)
    began = trio.current_time()
    await mine.send([bytes(2000)])
    await receive(theirs)
    assert trio.current_time() - began == pytest.approx(3.0)


@two_nodes
async def test_a_killed_process_ends_its_connections_and_frees_its_address(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    await theirs.send([b"last words"])
    broker.kill()
    with pytest.raises(SimulatedCrash):
        await theirs.send([b"more"])
    received = b""
    while data := await receive(mine):
        received += data
    assert received == b"last words"
    with pytest.raises(ConnectFailed, match=ADDRESS):
        await client.net.connect(ADDRESS)
    await broker.restart().net.listen(ADDRESS)
    await client.net.connect(ADDRESS)


@two_nodes
async def test_a_machine_without_power_is_silent_until_it_is_back(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    broker.crash()
    with trio.move_on_after(3600) as scope:
        await receive(mine)
    assert scope.cancelled_caught
    broker.restart()
    with pytest.raises(ConnectionLost, match="reset"):
        await receive(mine)


@two_nodes
async def test_death_wakes_waiting_tasks_of_the_dead_process(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    async def wait_in_vain(wait: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(SimulatedCrash):
            await wait()

    other = await broker.net.listen("broker:1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain, lambda: receive(theirs))
        nursery.start_soon(wait_in_vain, lambda: theirs.send([bytes(2 * PIPE_BYTES_MAX)]))
        nursery.start_soon(wait_in_vain, other.accept)
        nursery.start_soon(wait_in_vain, lambda: broker.net.connect(ADDRESS))
        await wait_all_tasks_blocked()
        broker.crash()


@two_nodes
async def test_faults_between_two_nodes_leave_a_third_alone(
    broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream
) -> None:
    broker.world.cut("node", "client")
    third = SimEnv(1, name="third", world=broker.world)
    began = trio.current_time()
    await third.net.connect(ADDRESS)
    assert trio.current_time() - began < 1


def test_a_link_can_be_cut_in_one_direction() -> None:
    async def scenario(broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream) -> None:
        broker.world.cut_one_way("client", "node")
        await mine.send([b"request"])
        await theirs.send([b"push"])
        assert await receive(mine, 1) == b"p"
        with trio.move_on_after(60) as scope:
            await receive(theirs)
        assert scope.cancelled_caught
        with pytest.raises(ConnectFailed, match="timed out"):
            await client.net.connect(ADDRESS)
        broker.world.heal("node", "client")
        assert await receive(theirs, 1) == b"r"

    for seed in range(10):
        between_two_nodes(scenario, seed)


def test_a_severed_connection_is_reset_for_both_with_any_part_of_what_was_in_flight() -> None:
    async def scenario(broker: SimEnv, client: SimEnv, theirs: Stream, mine: Stream) -> int:
        if client.rng.uniform(0, 1) < 0.5:
            broker.world.cut("node", "client")
        await mine.send([bytes(1000)])
        broker.world.sever("node", "client")
        arrived = 0
        try:
            while True:
                arrived += len(await receive(theirs))
        except ConnectionLost as error:
            lost = error.text
        assert "reset" in lost
        for stream in (mine, theirs):
            with pytest.raises(ConnectionLost):
                await stream.send([b"more"])
        with pytest.raises(ConnectionLost, match="reset"):
            await receive(mine)
        return arrived

    arrived = [between_two_nodes(scenario, seed) for seed in range(20)]
    assert len(set(arrived)) > 5
    assert all(0 <= count <= 1000 for count in arrived if isinstance(count, int))
