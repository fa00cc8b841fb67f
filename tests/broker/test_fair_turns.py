"""However many connections have something to do, a turn of the loop has an end, and nobody waits for all the others."""

from __future__ import annotations

import socket
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from linn.core.batch.steps import TURN_S
from linn.core.broker.broker import running_broker
from linn.core.env.real.env import RealClock, RealEnv
from linn.core.loop.fair_turns import (
    AT_ONCE_MAX,
    AT_ONCE_MIN,
    COUNTED_S_MAX,
    CREDIT_S_MAX,
    FIRST_AT_ONCE,
    FIRST_CREDIT_S,
    ROUNDS_MAX,
    TURN_OF_ALL_S,
    FairTurns,
    TurnSlot,
)
from linn.testing.broker_setup import BrokerSetup
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

GREEDY = 500
CROWD = 300


class Workers:
    """Tasks that use turns, on a clock that only their work moves on, and what interrupts it."""

    def __init__(self) -> None:
        self.now_s = self.interrupted_s = 0.0
        self.turns = FairTurns(lambda: self.now_s, lambda: self.now_s - self.interrupted_s)
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

    def be_interrupted(self, for_s: float) -> None:
        """Take wall-clock time without CPU time, as if another process had the processor."""
        self.now_s += for_s
        self.interrupted_s += for_s

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


def scenario(test: Callable[[Workers, trio.Nursery], Awaitable[None]]) -> Callable[[], None]:
    async def in_simulation(env: SimEnv) -> None:
        async with at_work() as (workers, nursery):
            await test(workers, nursery)

    return lambda: run_simulation(0, in_simulation)


@pytest.mark.parametrize("ready", [None, trio.lowlevel.checkpoint], ids=["more at once", "came meanwhile"])
def test_a_turn_of_very_many_has_an_end(ready: Callable[[], Awaitable[None]] | None) -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        for number in range(GREEDY):
            nursery.start_soon(workers.work, f"greedy {number}", TURN_S, ready)
        await workers.longest_turn_s(100)
        assert await workers.longest_turn_s(200) < 2.1 * AT_ONCE_MIN * TURN_S

    test()


def test_the_less_the_turns_take_the_more_fit_into_one() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        await busy(workers, nursery, GREEDY, TURN_OF_ALL_S / 200, turns=10)
        assert TURN_OF_ALL_S / 2 <= await workers.longest_turn_s(20) <= 2 * TURN_OF_ALL_S

    test()


def test_turns_that_take_no_time_that_can_be_measured_are_no_trouble() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        share = TurnSlot(workers.turns)
        for number in range(GREEDY):
            nursery.start_soon(workers.work, f"greedy {number}", 0.0)
        for _ in range(200):
            await share.next_turn(None)
        assert workers.turns.waiting <= GREEDY

    test()


def test_few_never_wait() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        for number in range(AT_ONCE_MIN // 2):
            nursery.start_soon(workers.work, f"modest {number}", TURN_S)
        count = 0
        for _ in range(1_000):
            await trio.lowlevel.checkpoint()
            count += 1
        assert min(workers.worked_s.values()) >= 0.9 * count * TURN_S

    test()


def test_one_small_request_is_carried_out_before_thousands_of_large_ones() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        await busy(workers, nursery, GREEDY, TURN_S, turns=50)
        began_s, share = workers.now_s, TurnSlot(workers.turns)
        await share.next_turn(trio.lowlevel.checkpoint)
        assert workers.now_s - began_s <= 4 * TURN_OF_ALL_S  # A round of all takes 250 ms.

    test()


async def used_ahead_s(workers: Workers, share: TurnSlot, turn_s: float) -> float:
    """Processor time that a busy connection uses before others run in between."""
    used_s = 0.0
    while True:
        began_s = workers.now_s
        await share.next_turn(trio.lowlevel.checkpoint)
        if workers.now_s - began_s > 4 * TURN_OF_ALL_S:
            return used_s
        workers.now_s += turn_s
        used_s += turn_s


def test_a_connection_with_credit_runs_several_small_requests_but_not_for_ever() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        seldom = TurnSlot(workers.turns)
        for number in range(GREEDY):
            nursery.start_soon(workers.work, f"greedy {number}", TURN_S)
        while workers.turns.passed_s < 2 * CREDIT_S_MAX:
            await trio.lowlevel.checkpoint()
        assert CREDIT_S_MAX / 2 < await used_ahead_s(workers, seldom, TURN_S / 2) < CREDIT_S_MAX + 3 * TURN_S
        # Who comes again instead gains nothing by it.
        assert 0 < await used_ahead_s(workers, TurnSlot(workers.turns), TURN_S / 2) < FIRST_CREDIT_S + 3 * TURN_S

    test()


def test_turns_that_are_much_longer_than_others_come_more_seldom() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        for number in range(GREEDY):
            nursery.start_soon(workers.work, f"modest {number}", TURN_S / 8)
        nursery.start_soon(workers.work, "greedy", TURN_S)
        await workers.longest_turn_s(1_000)
        greedy_s = workers.worked_s.pop("greedy")
        assert len(workers.worked_s) == GREEDY
        assert 0.5 < greedy_s / statistics.mean(workers.worked_s.values()) < 4  # Its turns are eight times as long.

    test()


def test_bookkeeping_of_waiting_connections_does_not_grow() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        for number in range(100):
            nursery.start_soon(workers.work, f"modest {number}", TURN_S / 8)
            nursery.start_soon(workers.work, f"greedy {number}", 10.0)

        async def give_up() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await TurnSlot(workers.turns).next_turn(trio.lowlevel.cancel_shielded_checkpoint)

        for _ in range(3_000):
            nursery.start_soon(give_up)
            await trio.lowlevel.checkpoint()
        assert 100 < workers.turns.waiting <= 200
        known = [len(workers.turns._by_start), len(workers.turns._in_order)]
        assert max(known) < 2 * ROUNDS_MAX * 200 + 2 * AT_ONCE_MAX

    test()


def test_those_that_work_are_not_kept_waiting_by_very_many_that_begin_to() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        idle = [TurnSlot(workers.turns) for _ in range(GREEDY)]
        for number in range(50):
            nursery.start_soon(workers.work, f"old {number}", TURN_S)
        while workers.turns.passed_s < 2 * CREDIT_S_MAX:
            await trio.lowlevel.checkpoint()
        for number, share in enumerate(idle):
            nursery.start_soon(workers.work, f"new {number}", TURN_S, None, share)
        workers.worked_s.clear()
        began_s, round_s = workers.now_s, (50 + GREEDY) * TURN_S
        while len(workers.worked_s) < 50 + GREEDY:
            await trio.lowlevel.checkpoint()
        # What the new ones have ahead is eight turns of each.
        assert workers.now_s - began_s < (ROUNDS_MAX + 1.5) * round_s

    test()


def test_turns_that_are_about_as_long_come_as_often() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        for number in range(GREEDY // 2):
            nursery.start_soon(workers.work, f"short {number}", TURN_S / 4)
            nursery.start_soon(workers.work, f"long {number}", TURN_S / 2)
        await workers.longest_turn_s(1_000)
        counts = [worked_s / (TURN_S / (4 if "short" in name else 2)) for name, worked_s in workers.worked_s.items()]
        assert len(counts) == GREEDY
        assert min(counts) > 0.9 * max(counts)  # By time alone it is a half.

    test()


def test_one_overlong_step_keeps_nobody_waiting_for_ever() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        await busy(workers, nursery, GREEDY, TURN_S, turns=50)
        share = TurnSlot(workers.turns)
        await share.next_turn(trio.lowlevel.checkpoint)
        workers.now_s += 10.0
        began_s = workers.now_s
        await share.next_turn(None)
        assert workers.now_s - began_s <= 2 * GREEDY * COUNTED_S_MAX

    test()


def test_a_turn_that_others_made_long_costs_few_of_ones_own() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        await busy(workers, nursery, GREEDY, TURN_S / 8, turns=50)
        share, turns = TurnSlot(workers.turns), 0
        await share.next_turn(trio.lowlevel.checkpoint)
        workers.now_s += 10.0  # As the collector may.
        workers.worked_s.clear()
        while workers.worked_s["greedy 0"] < 40 * TURN_S / 8:
            await share.next_turn(None)
            workers.now_s += TURN_S / 8
            turns += 1
        assert turns > 25

    test()


def test_a_connection_preempted_by_other_processes_is_served_as_often_as_others() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        await busy(workers, nursery, GREEDY, TURN_S / 8, turns=50)
        share, turns = TurnSlot(workers.turns), 0
        workers.worked_s.clear()
        while workers.worked_s["greedy 0"] < 40 * TURN_S / 8:
            await share.next_turn(None)
            workers.now_s += TURN_S / 8
            workers.be_interrupted(TURN_S)
            turns += 1
        assert 36 < turns < 60

    test()


def test_turns_that_are_interrupted_are_fewer_in_one_of_the_loop() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        async def be_slow() -> None:
            share = TurnSlot(workers.turns)
            while True:
                await share.next_turn(None)
                workers.be_interrupted(TURN_S)

        for _ in range(GREEDY):
            nursery.start_soon(be_slow)
        await workers.longest_turn_s(100)
        assert await workers.longest_turn_s(200) < 2.1 * AT_ONCE_MIN * TURN_S

    test()


def test_longer_turns_are_noticed_also_without_waiters() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        for _ in range(1_000):
            workers.turns.learn(0.0, 0.0)
        await busy(workers, nursery, AT_ONCE_MAX // 3, TURN_S, turns=100)
        assert await workers.longest_turn_s(100) < 2.1 * AT_ONCE_MIN * TURN_S

    test()


def test_a_cancelled_wait_takes_no_turn_from_others() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        await busy(workers, nursery, GREEDY, TURN_S, turns=50)
        share = TurnSlot(workers.turns)
        with trio.CancelScope() as scope:
            scope.cancel()
            await share.next_turn(trio.lowlevel.cancel_shielded_checkpoint)
        assert scope.cancelled_caught
        assert not share.waits

    test()


def test_the_oldest_of_equal_connections_run_first() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
        shares = [TurnSlot(workers.turns) for _ in range(4 * FIRST_AT_ONCE)]
        went_on: list[int] = []

        async def go_on(share: TurnSlot) -> None:
            await share.next_turn(None)
            went_on.append(share.number)

        workers.turns.left = 0
        for share in reversed(shares):
            nursery.start_soon(go_on, share)
        while not went_on:
            await trio.lowlevel.checkpoint()
        assert {*went_on} <= {share.number for share in shares[:FIRST_AT_ONCE]}

    test()


def test_a_turn_ends_once_it_was_long_enough_and_others_wait() -> None:
    @scenario
    async def test(workers: Workers, nursery: trio.Nursery) -> None:
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
        share.end()
        assert not share.is_over()

    test()


class SlowMachine(RealClock):
    """The clock of a machine that seems 20 times as slow."""

    def monotonic(self) -> float:
        return 20 * super().monotonic()


def test_few_of_many_simultaneous_hellos_are_answered_in_a_turn(tmp_path: Path) -> None:
    greeting = b"".join(frames_of(hello("crowd"), 1))

    async def on_loopback() -> None:
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
            assert max(after - before for before, after in pairwise(welcomed)) <= 2 * FIRST_AT_ONCE

    trio.run(on_loopback)


def test_few_busy_connections_run_in_a_turn(tmp_path: Path) -> None:
    greeting, pings = b"".join(frames_of(hello("crowd"), 1)), b"".join(frames_of(m.Ping(), 1)) * 500

    async def on_loopback() -> None:
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
            assert max(went_on) <= 2 * FIRST_AT_ONCE

    trio.run(on_loopback)
