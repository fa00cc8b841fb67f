"""Records that came back because their consumer was lost are given out few at a time, and alone after another loss, so
that one that kills its consumers is found and the others are not blamed.
"""

from __future__ import annotations

from random import Random

import pytest
import trio
from raw_client import RawClient, broker_on, connected, served, simulated, values

from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

pytestmark = pytest.mark.quick
QUEUE = '[topics.t]\nlease = "10s"\n'
POISONED = '[topics.t]\nlease = "10s"\npartitions = 2\ndead_letter = "dead"\n[topics.dead]\n'


async def _worker(env: SimEnv, credit: int = 10, **options: int | str) -> RawClient:
    client = await connected(env)
    await client.call(m.Subscribe("t", credit=credit, **options))
    return client


async def _got(client: RawClient, wait_s: float = 1) -> list[tuple[str, int]]:
    """(values, attempt) of each delivery that comes until none has come for a while."""
    found = []
    while not await client.is_silent(wait_s):
        event = await client.delivery()
        found.append(("".join(values(event.batches)), event.message.attempt))
    return found


async def _lose(env: SimEnv, *, times: int = 1) -> None:
    """Let consumers be lost with all that one delivery holds, one after the other."""
    for _ in range(times):
        lost = await _worker(env, 1_000)
        await lost.delivery()
        await lost.stream.aclose()
        await trio.sleep(0.1)


@served(QUEUE)
async def test_a_consumer_holds_one_delivery_of_records_that_came_back_by_a_loss_beside_others(env: SimEnv) -> None:
    publisher = await connected(env)
    await publisher.publish("t", ["a"] * 200 + ["b"] * 100)
    await _lose(env)
    next_one = await _worker(env, 1_000)
    first = await next_one.delivery()
    assert (values(first.batches), first.message.attempt) == (["a"] * 128, 2)
    await publisher.publish("t", ["d", "e"])
    assert await _got(next_one) == [("de", 1)], "what was never lost does not wait"
    assert await next_one.settle(1, first) == []
    assert values((await next_one.delivery()).batches) == ["a"] * 72 + ["b"] * 56
    assert await _got(await _worker(env, 1_000)) == [("b" * 44, 2)], "each consumer has one"


@served(QUEUE)
async def test_records_that_were_lost_again_are_given_out_alone(env: SimEnv) -> None:
    publisher = await connected(env)
    await publisher.publish("t", ["a", "b", "c"])
    await _lose(env, times=2)
    next_one = await _worker(env)
    first = await next_one.delivery()
    assert (values(first.batches), first.message.attempt) == (["a"], 3)
    await publisher.publish("t", ["d", "e"])
    assert await _got(next_one) == [("de", 1)], "what was never lost does not wait"
    assert await next_one.settle(1, first) == []
    assert values((await next_one.delivery()).batches) == ["b"]
    assert await _got(await _worker(env)) == [("c", 3)], "each consumer has one"


@served('[topics.t]\nmax_deliveries = 2\ndead_letter = "dead"\n[topics.dead]\n')
async def test_records_whose_next_attempt_is_the_last_are_given_out_alone(env: SimEnv) -> None:
    publisher = await connected(env)
    await publisher.publish("t", ["a", "x", "b"])
    await _lose(env)
    workers = [await _worker(env) for _ in "axb"]
    events = [await worker.delivery() for worker in workers]
    assert [values(event.batches) for event in events] == [["a"], ["x"], ["b"]]
    await workers[1].stream.aclose()
    for place in (0, 2):
        assert await workers[place].settle(1, events[place]) == []
    await trio.sleep(1)
    assert await publisher.fetch("dead") == ["x"]


@served(QUEUE)
async def test_one_that_its_consumer_returns_is_no_longer_suspected(env: SimEnv) -> None:
    await (await connected(env)).publish("t", ["a", "b"])
    await _lose(env, times=2)
    client = await _worker(env)
    for value in "ab":
        event = await client.delivery()
        assert values(event.batches) == [value]
        await client.call(m.Credit(1, 1))
        assert await client.settle(1, event, m.Verdict.NACK, ms=2_000) == []
    await client.call(m.Credit(1, 10))
    assert await _got(client, 3) in ([("ab", 4)], [("a", 4), ("b", 4)])


@served(QUEUE)
async def test_a_consumer_that_leaves_is_not_lost_and_one_whose_lease_expires_is(env: SimEnv, broker: Broker) -> None:
    leaver = await _worker(env)
    await leaver.publish("t", ["a", "b"])
    await leaver.delivery()
    await leaver.call(m.Unsubscribe(1))
    queue = broker.catalog.topics["t"].queue
    assert queue is not None
    assert queue.lost_consumers == 0
    slow = await _worker(env)
    assert await _got(slow) == [("ab", 2)]
    assert await slow.is_silent(8)
    assert await _got(slow) == [("a", 3)]
    assert await _got(await _worker(env)) == [("b", 3)]
    await slow.stream.aclose()
    await trio.sleep(1)
    assert queue.lost_consumers == 1


@simulated
async def test_the_suspicion_survives_a_restart(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        lost = await _worker(env)
        await lost.publish("t", ["a", "b", "c"])
        await lost.delivery()
        await lost.stream.aclose()
        assert await _got(await _worker(env)) == [("abc", 2)]
    env.disk.kill()
    env = env.restart()
    async with broker_on(env, QUEUE):
        assert await _got(await _worker(env)) == [("a", 3)]
        assert await _got(await _worker(env)) == [("b", 3)]


@served(POISONED)
async def test_a_record_that_kills_its_consumers_dies_and_takes_no_other_with_it(env: SimEnv) -> None:
    """Consumers with a prefetch of ten die as soon as they see "x"."""
    publisher, random = await connected(env), Random(1)
    names = [f"{number}" for number in range(60)]
    for number, name in enumerate([*names[:30], "x", *names[30:]]):
        await publisher.publish("t", [name], partition=number % 2)
    done, most, deaths = list[str](), 0, 0
    clients = [await _worker(env) for _ in range(3)]
    while len(done) < len(names) or deaths < 20:
        assert trio.current_time() < 600, f"{len(names) - len(done)} do not come"
        place = random.randrange(3)
        client = clients[place]
        if await client.is_silent(0.1):
            continue
        event = await client.delivery()
        found = values(event.batches)
        if "x" in found:
            deaths += 1
            assert event.message.attempt == deaths
            await client.stream.aclose()
            clients[place] = await _worker(env)
            continue
        most = max(most, event.message.attempt)
        if await client.settle(1, event) == []:
            done += found
    await trio.sleep(1)
    assert (sorted(done), deaths) == (sorted(names), 20)
    assert most <= 3, "innocent records are lost with it before it is known, and not again and again"
    letters = await publisher.fetch("dead")
    assert letters == ["x"]
    shown = (await publisher.administer("topic.show", name="t"))["queue"]
    assert shown["unsettled"] == 0


@served('[topics.t]\nlease = "10s"\nmax_deliveries = "unlimited"\ndead_letter = "dead"\n[topics.dead]\n')
async def test_attempts_can_be_unlimited_beside_a_dead_letter_topic(client: RawClient) -> None:
    subscription = (await client.call(m.Subscribe("t", credit=1))).subscription
    await client.publish("t", ["a"])
    for attempt in range(1, 30):
        event = await client.delivery()
        assert event.message.attempt == attempt
        await client.settle(subscription, event, m.Verdict.NACK)
    assert (await client.administer("topic.show", name="t"))["settings"]["max_deliveries"] == "unlimited"


@served(QUEUE)
async def test_no_record_is_forgotten_where_losses_and_settlements_take_turns(env: SimEnv) -> None:
    random, publisher = Random(7), await connected(env)
    for number in range(100):
        await publisher.publish("t", [f"{number}"])
    done = set[str]()
    clients = [await _worker(env, 5) for _ in range(3)]
    for step in range(1_000):
        if len(done) == 100:
            break
        place = random.randrange(3)
        client = clients[place]
        if step % 20 == 0:
            await client.stream.aclose()
            clients[place] = await _worker(env, 5)
        elif not await client.is_silent(0.05):
            event = await client.delivery()
            if await client.settle(1, event) == []:
                done.update(values(event.batches))
    assert len(done) == 100
