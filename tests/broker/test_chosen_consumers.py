"""The consumers that get a queue's records: by priority, or the single active one."""

from __future__ import annotations

import pytest
import trio
from raw_client import RawClient, Refused, connected, served, values
from seeds import failures
from single_active_walk import walk

from linn.core.loop.waiting import RankedSignal
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

QUEUE = '[topics.t]\nlease = "10s"\n'
SINGLE = '[topics.t]\nconsumers = "one"\nlease = "10s"\n'


async def _worker(client: RawClient, credit: int = 10, **options: int | str) -> int:
    made = await client.call(m.Subscribe("t", credit=credit, **options))
    subscription: int = made.subscription
    return subscription


async def _got(client: RawClient, wait_s: float = 1) -> list[str]:
    """The values that are pushed, until none has come for a while."""
    found: list[str] = []
    while not await client.is_silent(wait_s):
        found += values((await client.delivery()).batches)
    return found


async def _active(client: RawClient) -> list[tuple[int, bool]]:
    shown = (await client.administer("subscription.show", topic="t"))["by_consumer"]
    return [(it["priority"], it["active"]) for it in shown]


# --- priorities ------------------------------------------------------------------------------------------------------


@served(QUEUE)
async def test_a_higher_priority_is_served_up_to_its_credit_and_then_the_lower_one(env: SimEnv) -> None:
    low, middle, high = [await connected(env) for _ in range(3)]
    await _worker(low, priority=-1)
    await _worker(middle, 1)
    await _worker(high, 2, priority=7)
    for value in "abcde":
        await low.publish("t", [value])
    assert [await _got(client) for client in (high, middle, low)] == [["a", "b"], ["c"], ["d", "e"]]


@served(QUEUE)
async def test_a_lower_priority_gets_nothing_as_long_as_the_higher_one_keeps_up(
    low: RawClient, high: RawClient
) -> None:
    await _worker(low)
    worker = await _worker(high, 2, priority=1)
    for number in range(20):
        await low.publish("t", [f"{number}"])
        event = await high.delivery()
        assert values(event.batches) == [f"{number}"]
        await high.settle(worker, event)
    assert await low.is_silent(1)


@served(QUEUE)
async def test_a_consumer_that_comes_with_credit_does_not_overtake_a_higher_one_that_waits(
    low: RawClient, high: RawClient
) -> None:
    await _worker(high, 100, priority=1)
    subscription = await _worker(low, 0)
    for number in range(20):
        await low.publish("t", [f"{number}"])
        assert (await low.pull(subscription)).batches == []
    assert len(await _got(high)) == 20


@served(QUEUE)
async def test_a_higher_priority_that_leaves_or_dies_leaves_the_records_to_the_lower_one(env: SimEnv) -> None:
    low, leaver, dead = [await connected(env) for _ in range(3)]
    await _worker(low)
    leaving, _ = await _worker(leaver, 1, priority=1), await _worker(dead, 1, priority=2)
    for value in "abc":
        await low.publish("t", [value])
    assert [await _got(client) for client in (dead, leaver, low)] == [["a"], ["b"], ["c"]]
    await leaver.call(m.Unsubscribe(leaving))
    await dead.stream.aclose()
    assert await _got(low) == ["b", "a"]


@pytest.mark.parametrize("higher", [True, False])
@served(QUEUE)
async def test_no_wake_up_is_lost_where_consumers_come_and_go(env: SimEnv, higher: bool) -> None:
    clients = [await connected(env) for _ in range(4)]
    for number in range(24):
        leaver = number % 4
        ranks = [int((place == leaver) == higher) for place in range(4)]
        workers = [await _worker(client, 1, priority=rank) for client, rank in zip(clients, ranks, strict=True)]
        await trio.sleep(0.1)
        await clients[leaver].tell(m.Unsubscribe(workers[leaver]))
        await clients[(leaver + 1) % 4].publish("t", [str(number)])
        await trio.sleep(1)
        got = []
        for place, client in enumerate(clients):
            await client.call(m.Ping())
            if place == leaver:
                client.pushed.clear()
                continue
            while client.pushed:
                event = client.pushed.popleft()
                got += values(event.batches)
                assert await client.settle(workers[place], event) == []
            await client.call(m.Unsubscribe(workers[place]))
        assert got == [str(number)]


@served('[topics.s]\nkind = "stream"\n[topics.t]\nkind = "both"\n')
async def test_only_consumers_that_compete_have_a_priority(client: RawClient) -> None:
    for wrong in (m.Subscribe("s", priority=1), m.Subscribe("s", group="g", priority=-1)):
        with pytest.raises(Refused) as refused:
            await client.call(wrong)
        assert refused.value.code == "delivery.wrong_kind"
    await client.call(m.Subscribe("t", priority=-(1 << 31)))
    await client.call(m.Subscribe("s", shared="w", priority=(1 << 31) - 1))


def test_tasks_are_woken_by_rank_and_then_in_order() -> None:
    async def scenario() -> list[str]:
        signal, woken = RankedSignal(), list[str]()

        async def wait(name: str, rank: int) -> None:
            await signal.wait(rank, trio.Event())
            woken.append(name)

        async with trio.open_nursery() as nursery:
            for name, rank in (("a", 0), ("b", 5), ("c", -3), ("d", 5)):
                nursery.start_soon(wait, name, rank)
                await trio.testing.wait_all_tasks_blocked()
            assert not signal.gives_way(5)
            signal.claim(9)
            assert signal.gives_way(5), "for work that is claimed"
            signal.unclaim(9)
            assert not signal.gives_way(5)
            assert signal.gives_way(4), "wakes b"
            assert signal.gives_way(4), "wakes nobody else"
            await trio.testing.wait_all_tasks_blocked()
            assert woken == ["b"]
            for _ in range(3):
                signal.notify()
                await trio.testing.wait_all_tasks_blocked()
        assert not signal.gives_way(-9)
        return woken

    assert trio.run(scenario) == ["b", "d", "a", "c"]


# --- the single active consumer --------------------------------------------------------------------------------------


@served(SINGLE)
async def test_the_oldest_consumer_is_active_and_the_next_one_takes_over_when_it_leaves(env: SimEnv) -> None:
    clients = [await connected(env) for _ in range(3)]
    workers = [await _worker(client, 2) for client in clients]
    assert await _active(clients[0]) == [(0, True), (0, False), (0, False)]
    for value in "abcdef":
        await clients[0].publish("t", [value])
    assert [await _got(client) for client in clients] == [["a", "b"], [], []]
    await clients[0].call(m.Unsubscribe(workers[0]))
    assert [await _got(client) for client in clients] == [[], ["a", "b"], []]
    await clients[1].stream.aclose()
    assert await _got(clients[2]) == ["a", "c"], "of those that came back by a loss it has one"


@served(SINGLE)
async def test_a_takeover_waits_until_the_one_before_holds_nothing(older: RawClient, higher: RawClient) -> None:
    worker = await _worker(older, 2)
    for value in "abcd":
        await older.publish("t", [value])
    held = [await older.delivery() for _ in range(2)]
    await _worker(higher, 2, priority=1)
    assert await higher.is_silent(1)
    assert await _active(older) == [(0, False), (1, False)]
    assert await older.settle(worker, held[0]) == []
    assert await higher.is_silent(1)
    assert await older.settle(worker, held[1]) == []
    assert await _got(higher) == ["c", "d"]
    assert await older.is_silent(1)
    assert await _active(older) == [(0, False), (1, True)]


@served(SINGLE)
async def test_consumers_are_told_which_one_is_active(older: RawClient, higher: RawClient) -> None:
    made = await older.call(m.Subscribe("t", credit=1))
    assert not made.stands_by
    await older.publish("t", ["a"])
    held = await older.delivery()
    made = await higher.call(m.Subscribe("t", credit=1, priority=1))
    assert made.stands_by
    assert await older.is_silent(1)
    assert await higher.is_silent(1)
    assert (older.active, higher.active) == ([(1, False)], []), "the takeover waits for the record"
    await older.settle(1, held)
    assert await higher.is_silent(1)
    assert (older.active, higher.active) == ([(1, False)], [(1, True)])
    await older.administer("topic.alter", name="t", settings={"consumers": "many"})
    assert await higher.is_silent(1)
    assert (older.active[-1], higher.active[-1]) == ((1, True), (1, True)), "all are"
    assert not (await higher.call(m.Subscribe("t", credit=0))).stands_by
    await older.administer("topic.alter", name="t", settings={"consumers": "one"})
    assert await higher.is_silent(1)
    assert (older.active[-1], higher.active[-2:]) == ((1, False), [(2, False), (1, True)])
    await higher.call(m.Unsubscribe(1))
    assert await older.is_silent(1)
    assert (older.active[-1], higher.active[-1]) == ((1, True), (1, True)), "who has left is told nothing more"


@served(SINGLE)
async def test_a_takeover_comes_at_the_latest_when_the_lease_expires(older: RawClient, higher: RawClient) -> None:
    await _worker(older)
    await older.publish("t", ["a"])
    await older.delivery()
    await _worker(higher, priority=1)
    assert await higher.is_silent(9)
    assert values((await higher.delivery(2)).batches) == ["a"]


@served(QUEUE)
async def test_a_queue_becomes_single_active_live_and_the_others_keep_what_they_hold(
    first: RawClient, second: RawClient
) -> None:
    await _worker(first, 1)
    worker = await _worker(second, 1)
    for value in "abcd":
        await first.publish("t", [value])
    held, theirs = await first.delivery(), await second.delivery()
    await first.administer("topic.alter", name="t", settings={"consumers": "one"})
    assert await first.settle(1, held) == []
    assert await first.is_silent(1), "the other one still holds a record"
    assert await second.settle(worker, theirs) == []
    assert (await _got(first), await _got(second)) == (["c"], [])
    await first.administer("topic.alter", name="t", settings={"consumers": "many"})
    assert await _got(second) == ["d"]


@served(SINGLE)
async def test_one_that_is_not_active_gets_nothing_by_a_pull_either(first: RawClient, second: RawClient) -> None:
    await _worker(first, 0)
    waiting = await _worker(second, 0)
    await first.publish("t", ["a"])
    assert (await second.pull(waiting)).batches == []
    placed = await second.ask(m.Pull(waiting, 10, 0, placed=True, partition=0, start=0))
    assert placed.batches == []


@served('[topics.t]\nkind = "stream"\nconsumers = "one"\n')
async def test_each_shared_subscription_of_a_stream_has_an_active_consumer_of_its_own(
    first: RawClient, second: RawClient
) -> None:
    await first.call(m.Subscribe("t", shared="a", credit=9))
    await second.call(m.Subscribe("t", shared="a", credit=9))
    await second.call(m.Subscribe("t", shared="b", credit=9))
    await first.publish("t", ["v"])
    assert (await first.delivery()).message.subscription == 1
    assert (await second.delivery()).message.subscription == 2
    assert await second.is_silent(1)


@pytest.mark.parametrize("seed", range(12))
def test_never_do_two_consumers_hold_records_of_a_single_active_queue(seed: int) -> None:
    walk(seed)


@pytest.mark.soak(seeds=2_000, chunk=50)
def test_never_do_two_consumers_hold_records_on_many_more_walks(seeds: range) -> None:
    assert not failures(walk, seeds, "single_active_walk.py")
