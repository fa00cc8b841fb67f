"""Tests of the fair turns: a turn of the loop has an end however many connections are busy, and none waits for all
others.
"""

from __future__ import annotations

import inspect
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from simulated_time import simulated

from linn.core.batch.steps import TURN_S
from linn.core.broker.broker import running_broker
from linn.core.env.real.env import RealClock, RealEnv
from linn.core.loop.fair_turns import (
    FIRST_TOGETHER,
    NEW_S,
    TOGETHER_MAX,
    TOGETHER_MIN,
    TURN_OF_ALL_S,
    FairTurns,
    TurnSlot,
)
from linn.testing.broker_setup import BrokerSetup
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

GREEDY = 500
CROWD = 300


class Workers:
    """Tasks that use turns, on a clock that only their work advances."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.turns = FairTurns(lambda: self.now_s)
        self.worked_s: Counter[str] = Counter()

    async def work(
        self,
        name: str,
        turn_s: float,
        ready: Callable[[], Awaitable[None]] | None = None,
        share: TurnSlot | None = None,
    ) -> None:
        """Work for so long in each turn, for ever."""
        share = share or TurnSlot(self.turns)
        while True:
            await share.next_turn(ready)
            self.now_s += turn_s
            self.worked_s[name] += turn_s

    async def longest_turn_s(self, turns: int) -> float:
        """The longest of the next turns of the loop."""
        ends = [self.now_s]
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
            ends.append(self.now_s)
        return max(after - before for before, after in pairwise(ends))


@asynccontextmanager
async def at_work() -> AsyncIterator[tuple[Workers, trio.Nursery]]:
    workers = Workers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield workers, nursery
        nursery.cancel_scope.cancel()


async def busy(workers: Workers, nursery: trio.Nursery, count: int, turn_s: float, turns: int) -> None:
    """Start `count` workers that always have more to do, and wait for so many turns of the loop."""
    for number in range(count):
        nursery.start_soon(workers.work, f"greedy {number}", turn_s)
    await workers.longest_turn_s(turns)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test in simulated time with workers at work. Its other parameters are pytest's."""

    async def in_simulation(env: SimEnv, **given: Any) -> None:
        async with at_work() as (workers, nursery):
            await test(workers, nursery, **given)

    in_simulation.__name__, in_simulation.__module__ = test.__name__, test.__module__
    kept = list(inspect.signature(test).parameters.values())[1:]
    in_simulation.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return simulated(in_simulation)


@pytest.mark.parametrize("ready", [None, trio.lowlevel.checkpoint], ids=["more at once", "came meanwhile"])
@scenario
async def test_a_turn_of_very_many_has_an_end(
    workers: Workers, nursery: trio.Nursery, ready: Callable[[], Awaitable[None]] | None
) -> None:
    for number in range(GREEDY):
        nursery.start_soon(workers.work, f"greedy {number}", TURN_S, ready)
    await workers.longest_turn_s(100)
    assert await workers.longest_turn_s(200) < 2.1 * TOGETHER_MIN * TURN_S


@scenario
async def test_the_less_the_turns_take_the_more_fit_into_one(workers: Workers, nursery: trio.Nursery) -> None:
    await busy(workers, nursery, GREEDY, TURN_OF_ALL_S / 200, turns=10)
    assert TURN_OF_ALL_S / 2 <= await workers.longest_turn_s(20) <= 2 * TURN_OF_ALL_S


@scenario
async def test_turns_that_take_no_time_that_can_be_measured_are_no_trouble(
    workers: Workers, nursery: trio.Nursery
) -> None:
    share = TurnSlot(workers.turns)
    for number in range(GREEDY):
        nursery.start_soon(workers.work, f"greedy {number}", 0.0)
    for _ in range(200):
        await share.next_turn(None)
    assert workers.turns.waiting <= GREEDY


@scenario
async def test_few_never_wait(workers: Workers, nursery: trio.Nursery) -> None:
    for number in range(TOGETHER_MIN // 2):
        nursery.start_soon(workers.work, f"modest {number}", TURN_S)
    count = 0
    for _ in range(1_000):
        await trio.lowlevel.checkpoint()
        count += 1
    assert min(workers.worked_s.values()) >= 0.9 * count * TURN_S


async def waited_s(workers: Workers, slot: TurnSlot, turn_s: float, turns: int) -> list[float]:
    """The time for which a connection waits for each of its next turns."""
    waited: list[float] = []
    for _ in range(turns):
        began_s = workers.now_s
        await slot.next_turn(trio.lowlevel.checkpoint)
        waited.append(workers.now_s - began_s)
        workers.now_s += turn_s
    return waited


@scenario
async def test_a_connection_goes_before_others_while_it_is_new(workers: Workers, nursery: trio.Nursery) -> None:
    await busy(workers, nursery, GREEDY, TURN_S, turns=300)
    slot = TurnSlot(workers.turns)
    assert max(await waited_s(workers, slot, TURN_S, 10)) <= 4 * TURN_OF_ALL_S
    workers.now_s += NEW_S
    assert min(await waited_s(workers, slot, TURN_S, 3)) > GREEDY * TURN_S / 2  # About a round of all.


@scenario
async def test_a_connection_whose_turns_are_short_does_not_wait_for_a_round_of_long_ones(
    workers: Workers, nursery: trio.Nursery
) -> None:
    await busy(workers, nursery, GREEDY, TURN_S, turns=300)
    slot = TurnSlot(workers.turns)
    workers.now_s += NEW_S
    first, *others = await waited_s(workers, slot, TURN_S / 8, 20)
    assert first > GREEDY * TURN_S / 2  # Nothing is known of it yet.
    assert max(others) <= 4 * TURN_OF_ALL_S


@scenario
async def test_those_that_go_first_get_half_of_the_turns_at_most(workers: Workers, nursery: trio.Nursery) -> None:
    await busy(workers, nursery, GREEDY, TURN_S, turns=300)

    async def come_again_and_again() -> None:
        while True:
            await TurnSlot(workers.turns).next_turn(None)
            workers.now_s += TURN_S
            workers.worked_s["new"] += TURN_S

    for _ in range(GREEDY):
        nursery.start_soon(come_again_and_again)
    workers.worked_s.clear()
    await workers.longest_turn_s(300)
    new_s = workers.worked_s.pop("new")
    assert 0.4 < new_s / (new_s + sum(workers.worked_s.values())) <= 0.5


@scenario
async def test_turns_that_are_about_as_long_come_as_often(workers: Workers, nursery: trio.Nursery) -> None:
    for number in range(GREEDY // 2):
        nursery.start_soon(workers.work, f"short {number}", TURN_S / 4)
        nursery.start_soon(workers.work, f"long {number}", TURN_S / 2)
    await workers.longest_turn_s(300)
    workers.worked_s.clear()
    await workers.longest_turn_s(2_000)
    counts = [worked_s / (TURN_S / (4 if "short" in name else 2)) for name, worked_s in workers.worked_s.items()]
    assert len(counts) == GREEDY
    assert min(counts) > 0.9 * max(counts)  # By time alone it is a half.


@scenario
async def test_longer_turns_are_noticed_also_without_waiters(workers: Workers, nursery: trio.Nursery) -> None:
    turn_s = 0.0

    async def work() -> None:
        slot = TurnSlot(workers.turns)
        while True:
            await slot.next_turn(None)
            workers.now_s += turn_s

    for _ in range(TOGETHER_MAX // 3):
        nursery.start_soon(work)
    await workers.longest_turn_s(100)
    assert not workers.turns.waiting
    turn_s = TURN_S
    await workers.longest_turn_s(100)
    assert await workers.longest_turn_s(100) < 2.1 * TOGETHER_MIN * TURN_S


@scenario
async def test_a_cancelled_wait_takes_no_turn_from_others(workers: Workers, nursery: trio.Nursery) -> None:
    await busy(workers, nursery, GREEDY, TURN_S, turns=50)
    share = TurnSlot(workers.turns)
    with trio.CancelScope() as scope:
        scope.cancel()
        await share.next_turn(trio.lowlevel.cancel_shielded_checkpoint)
    assert scope.cancelled_caught
    assert not share.waits


@scenario
async def test_a_turn_ends_once_it_was_long_enough_and_others_wait(workers: Workers, nursery: trio.Nursery) -> None:
    alone = TurnSlot(workers.turns)
    await alone.next_turn(None)
    workers.now_s += 10 * TURN_S
    assert not alone.is_over()
    await busy(workers, nursery, GREEDY, TURN_S, turns=50)
    share = TurnSlot(workers.turns)
    await share.next_turn(None)
    assert not share.is_over()
    workers.now_s += 0.9 * TURN_S
    assert not share.is_over()
    workers.now_s += 0.2 * TURN_S
    assert share.is_over()


class SlowMachine(RealClock):
    """The clock of a machine that seems 20 times as slow."""

    def monotonic(self) -> float:
        return 20 * super().monotonic()


async def test_few_of_many_simultaneous_hellos_are_answered_in_a_turn(tmp_path: Path) -> None:
    greeting = b"".join(frames_of(hello("crowd"), 1))
    config, plugins = BrokerSetup().load(str(tmp_path))
    env = RealEnv()
    env.clock = SlowMachine()
    async with running_broker(config, env, plugins) as broker:
        host, port = broker.addresses["native"].rsplit(":", 1)
        open_now = broker.connections.traffic["native"].open
        with ExitStack() as stack, trio.fail_after(60):
            crowd = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(CROWD)]
            while len(open_now) < CROWD:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.01)
            for one in crowd:
                one.sendall(greeting)
            welcomed = [0]
            while welcomed[-1] < CROWD:
                await trio.lowlevel.checkpoint()
                welcomed.append(sum(each.read().sent_bytes > 0 for each in open_now.values()))
        assert max(after - before for before, after in pairwise(welcomed)) <= 2 * FIRST_TOGETHER


async def test_few_busy_connections_run_in_a_turn(tmp_path: Path) -> None:
    greeting, pings = b"".join(frames_of(hello("crowd"), 1)), b"".join(frames_of(m.Ping(), 1)) * 500
    config, plugins = BrokerSetup().load(str(tmp_path))
    async with running_broker(config, RealEnv(), plugins) as broker:
        host, port = broker.addresses["native"].rsplit(":", 1)
        open_now = broker.connections.traffic["native"].open

        def received() -> dict[int, int]:
            return {each.number: each.read().received_bytes for each in open_now.values()}

        with ExitStack() as stack, trio.fail_after(60):
            crowd = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(CROWD)]
            for one in crowd:
                one.sendall(greeting)
            while len(open_now) < CROWD or not all(each.read().sent_bytes for each in open_now.values()):
                await trio.lowlevel.checkpoint()
            greeted_bytes = before = received()
            for one in crowd:
                one.sendall(pings)
            went_on = []
            while any(before[number] < greeted_bytes[number] + len(pings) for number in before):
                await trio.lowlevel.checkpoint()
                now = received()
                went_on.append(sum(now[number] != before[number] for number in now))
                before = now
        assert sum(went_on) >= CROWD
        assert max(went_on) <= 2 * FIRST_TOGETHER
