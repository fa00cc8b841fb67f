"""Tests of turns: of tasks that leave, do long work or have much to do, few run between two turns of others."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from raw_client import ALWAYS, broker_on, records, served, simulated

from linn.core.batch.steps import TURN_S
from linn.core.broker.broker import Broker, running_broker
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import LinnError
from linn.core.log.watchers import TOLD_AT_ONCE_MAX, Watchers
from linn.core.loop.fair_turns import FIRST_TOGETHER
from linn.core.loop.long_work import (
    TURNS_OF_OTHERS,
    TURNS_OF_OTHERS_MAX,
    yield_turns,
)
from linn.protocols.capnp.keepalive import wait_while
from linn.testing.broker_setup import BrokerSetup
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

CROWD = 100


async def most_in_turns(work: Callable[[], Awaitable[None]], turns: int) -> int:
    """The most tasks of a crowd, all of them runnable, that run in `turns` turns of another task."""
    went_on: list[int] = []
    turn = 0

    async def each() -> None:
        await work()
        went_on.append(turn)

    async with trio.open_nursery() as nursery:
        for _ in range(CROWD):
            nursery.start_soon(each)
        while len(went_on) < CROWD:
            await trio.lowlevel.checkpoint()
            turn += 1
    return max(sum(first <= at < first + turns for at in went_on) for first in went_on)


async def test_connections_that_end_together_are_closed_a_few_at_a_time(tmp_path: Path) -> None:
    config, plugins = BrokerSetup().load(str(tmp_path))
    async with running_broker(config, RealEnv(), plugins) as broker:
        host, port = broker.listening.addresses["native"].rsplit(":", 1)
        crowd = [socket.create_connection((host, int(port))) for _ in range(CROWD)]
        with trio.fail_after(10):
            while broker.listening.connections < CROWD:
                await trio.lowlevel.checkpoint()
            for one in crowd:
                one.close()
            closed = [0]
            while broker.listening.connections:
                await trio.lowlevel.checkpoint()
                closed.append(CROWD - broker.listening.connections)
        assert max(after - before for before, after in pairwise(closed)) <= FIRST_TOGETHER


@served("")
async def test_one_task_of_long_work_runs_between_the_turns_of_others(broker: Broker) -> None:
    assert await most_in_turns(broker.long_work.task().give_turn, TURNS_OF_OTHERS) <= 2


async def turns_in(work: Callable[[], Awaitable[None]]) -> int:
    """The turns of another task while some work is done."""
    count = 0

    async def others() -> None:
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.lowlevel.checkpoint()
        count = 0
        await work()
        nursery.cancel_scope.cancel()
    return count


@served('[topics.t]\nkind = "stream"\npartitions = 50\n')
async def test_others_have_a_turn_between_the_logs_that_are_kept_in_order(broker: Broker) -> None:
    assert await turns_in(broker.topics["t"].enforce_retention) >= 49


@pytest.mark.parametrize("seed", [1, 2, 3])  # A count begins within a round: elsewhere it may be one turn less.
@simulated
async def test_the_longer_a_step_was_the_more_turns_others_get(env: SimEnv, seed: int) -> None:
    async def turns_after(broker: Broker, env: SimEnv, step_s: float) -> int:
        work = broker.long_work.task()
        await work.give_turn()
        await env.clock.sleep(step_s)
        return await turns_in(work.give_turn)

    async with broker_on(env, "") as broker:
        assert await turns_after(broker, env, TURN_S / 2) == 0
        short, long = [await turns_after(broker, env, TURN_S * (n + 0.5)) for n in (1, 3)]
        assert TURNS_OF_OTHERS <= short <= TURNS_OF_OTHERS + 2
        assert 3 * TURNS_OF_OTHERS <= long <= 3 * TURNS_OF_OTHERS + 2
        longest = await turns_in(partial(yield_turns, env.clock.monotonic, 1_000 * TURN_S))
        assert TURNS_OF_OTHERS_MAX <= longest <= TURNS_OF_OTHERS_MAX + 2


@simulated
async def test_waiters_for_one_sync_are_notified_in_order_and_a_few_at_a_time(env: SimEnv) -> None:
    async with broker_on(env, ALWAYS + "[topics.t]\n") as broker:
        topic = broker.topics["t"]
        partition, told, late, turn = topic.partitions[0], [], [], 0

        def tell(number: int, _: LinnError | None) -> None:
            told.append((number, turn))
            if number == 0:  # Who asks while others are told comes behind them.
                partition.committed.when_passed(1, lambda _: late.append(len(told)))

        for number in range(20 * TOLD_AT_ONCE_MAX):
            end = topic.append(partition, records(["x"])) + 1
            partition.committed.when_passed(end, partial(tell, number))
        assert not told
        await partition.watchers.wait()
        while not late:
            turn += 1
            await trio.lowlevel.checkpoint()
    assert [number for number, _ in told] == list(range(20 * TOLD_AT_ONCE_MAX))
    assert max(Counter(turn for _, turn in told).values()) <= 2 * TOLD_AT_ONCE_MAX
    assert late == [len(told)]


class SlowTurns:
    """A clock that advances by 8 ms each time it is read: each turn of the loop is that long."""

    now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 0.008
        return self.now_s


class Turns:
    """Watchers of one partition that record who was notified in which turn."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.watchers = Watchers(nursery.start_soon)
        self.turn = 0
        self.told: list[tuple[int, int]] = []
        """(who, turn)."""

    def watch(self, who: int) -> Callable[[], None]:
        def tell() -> None:
            self.told.append((who, self.turn))

        self.watchers.add(tell)
        return tell

    async def pass_turns(self, turns: int) -> None:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
            self.turn += 1


def watching(test: Callable[[Turns], Awaitable[None]]) -> None:
    async def in_simulation(env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            await test(Turns(nursery))

    run_simulation(0, in_simulation)


def test_very_many_watchers_of_a_partition_are_notified_in_order_and_a_few_at_a_time() -> None:
    @watching
    async def test(turns: Turns) -> None:
        for who in range(5 * TOLD_AT_ONCE_MAX):
            turns.watch(who)
        turns.watchers.tell()
        assert len(turns.told) == TOLD_AT_ONCE_MAX
        await turns.pass_turns(20)
        assert [who for who, _ in turns.told] == [*range(5 * TOLD_AT_ONCE_MAX)]
        assert max(Counter(turn for _, turn in turns.told).values()) <= 2 * TOLD_AT_ONCE_MAX


def test_a_notification_during_another_one_reaches_all() -> None:
    @watching
    async def test(turns: Turns) -> None:
        for who in range(5 * TOLD_AT_ONCE_MAX):
            turns.watch(who)
        turns.watchers.tell()
        await turns.pass_turns(4)
        before = len(turns.told)
        assert TOLD_AT_ONCE_MAX < before < 5 * TOLD_AT_ONCE_MAX
        turns.watchers.tell()
        await turns.pass_turns(20)
        assert {who for who, _ in turns.told[before:]} == {*range(5 * TOLD_AT_ONCE_MAX)}
        assert len(turns.told) == before + 5 * TOLD_AT_ONCE_MAX


def test_a_watcher_that_leaves_during_notification_skips_no_other() -> None:
    @watching
    async def test(turns: Turns) -> None:
        watch = {who: turns.watch(who) for who in range(5 * TOLD_AT_ONCE_MAX)}
        turns.watchers.tell()
        left = {0, 1, 2 * TOLD_AT_ONCE_MAX, 5 * TOLD_AT_ONCE_MAX - 1}
        for who in left:
            turns.watchers.remove(watch[who])
        await turns.pass_turns(20)
        assert {who for who, _ in turns.told} >= {*watch} - left
        count = len(turns.told)
        for who in {*watch} - left:
            turns.watchers.remove(watch[who])
        turns.watchers.tell()
        await turns.pass_turns(2)
        assert (len(turns.told), len(turns.watchers)) == (count, 0)


@pytest.mark.parametrize("wait", [m.Subscribe("news", credit=10), m.Fetch("news", 0, 0, wait_max_ms=60_000)])
async def test_few_of_many_readers_waiting_for_a_record_get_it_in_a_turn(tmp_path: Path, wait: m.Message) -> None:
    waits = b"".join([*frames_of(hello("crowd"), 1), *frames_of(wait, 2)])
    crowd_size = 4 * TOLD_AT_ONCE_MAX
    config, plugins = BrokerSetup(topics={"news": {"kind": "stream"}}).load(str(tmp_path))
    async with running_broker(config, RealEnv(), plugins) as broker:
        host, port = broker.addresses["native"].rsplit(":", 1)
        open_now = broker.connections.traffic["native"].open
        partition = broker.topic("news").partition(0)

        def given() -> dict[int, int]:
            now = {each.number: each.read() for each in open_now.values()}
            return {number: traffic.sent_bytes + traffic.unsent_bytes for number, traffic in now.items()}

        with ExitStack() as stack, trio.fail_after(60):
            crowd = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(crowd_size)]
            for one in crowd:
                one.sendall(waits)
            while len(partition.watchers) < crowd_size:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.01)
            went_on, before = [], given()
            partition.append(records(["one for all"]))
            while sum(went_on) < crowd_size:
                await trio.lowlevel.checkpoint()
                now = given()
                went_on.append(sum(now[number] != before[number] for number in now))
                before = now
        assert sum(went_on) == crowd_size
        assert max(went_on) <= 2 * TOLD_AT_ONCE_MAX


def test_after_long_turns_others_get_the_time_of_several_turns_and_no_more() -> None:
    async def scenario(env: SimEnv) -> None:
        monotonic, turns = SlowTurns().monotonic, 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.lowlevel.checkpoint()
            before = turns
            await yield_turns(monotonic)
            assert turns - before <= 2
            nursery.cancel_scope.cancel()

    run_simulation(0, scenario)


@served("")
async def test_once_a_broker_stops_long_work_waits_for_nobody(broker: Broker) -> None:
    work = broker.long_work.task()
    async with broker.long_work.turn:
        broker.stopping = broker.long_work.is_stopping = True
        with trio.fail_after(1):
            await work.give_turn()


def test_a_long_wait_polls_rarely() -> None:
    async def scenario(env: SimEnv) -> None:
        looks = 0

        def waits() -> bool:
            nonlocal looks
            looks += 1
            return True

        await wait_while(waits, env.clock, 10.0)
        assert 30 < looks < 60
        began_s = env.clock.monotonic()
        await wait_while(lambda: False, env.clock, 10.0)
        assert env.clock.monotonic() == began_s

    run_simulation(0, scenario)
