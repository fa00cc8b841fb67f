"""The whole broker under seeds: producers, workers and readers go on while it is killed and loses power.

With fsync = "always": what was confirmed is there, in its order; every confirmed record is settled or delivered again
until it is; offsets are committed before they count.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from raw_client import ALWAYS, RawClient, broker_on, connected, records, values

from linn.core.errors.tree import LinnError
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = (
    ALWAYS
    + '[exchanges.e]\ntype = "fanout"\n'
    + '[topics.q]\nlease = "2s"\npartitions = 2\n[[topics.q.bindings]]\nexchange = "e"\n'
    + '[topics.s]\nkind = "both"\nlease = "2s"\n[[topics.s.bindings]]\nexchange = "e"\n'
)
LIVES = 3
RECORDS = 40


class World:
    """What the clients know."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.confirmed: dict[str, int] = {}
        """By value, its offset in s."""
        self.sent: list[str] = []
        self.acked: dict[str, set[str]] = {"q": set(), "s": set()}
        """What the broker said is settled."""
        self.tried: dict[str, set[str]] = {"q": set(), "s": set()}
        """Of what an ack was sent, whether or not the answer came."""
        self.settled_twice: list[str] = []
        """What the broker let somebody settle after it had said that it was settled: it was leased again."""
        self.committed = self.commit_tried = 0


async def until_lost(work: Callable[[RawClient], Awaitable[None]], env: SimEnv) -> None:
    """One connection's work, until the broker is gone."""
    with contextlib.suppress(LinnError, EOFError):
        await work(await connected(env))


async def _produce(world: World, client: RawClient) -> None:
    while len(world.sent) < RECORDS * LIVES:
        value = str(len(world.sent))
        world.sent.append(value)
        correlation = await client.send(m.Publish("e", True), [records([value])])
        await client.answer(correlation)
        world.confirmed[value] = 1
        await trio.sleep(world.rng.uniform(0, 0.05))


async def _work(world: World, topic: str, client: RawClient) -> None:
    subscription = (await client.call(m.Subscribe(topic, credit=5))).subscription
    while True:
        event = await client.delivery(1e9)
        got = values(event.batches)
        if world.rng.random() < 0.2:
            verdict = m.Verdict.NACK
        elif world.rng.random() < 0.1:
            await trio.sleep(3)
            verdict = m.Verdict.ACK
        else:
            verdict = m.Verdict.ACK
        if verdict == m.Verdict.ACK:
            world.tried[topic] |= set(got)
        settled = world.acked[topic] & set(got)
        refused = await client.settle(subscription, event, verdict)
        if not refused:
            world.settled_twice += [f"{topic}:{value}" for value in settled]
        if verdict == m.Verdict.ACK and not refused:
            world.acked[topic] |= set(got)
        await client.tell(m.Credit(subscription, len(got)))


async def _read(world: World, client: RawClient) -> None:
    subscription = (await client.call(m.Subscribe("s", group="g", credit=10))).subscription
    expected: int | None = None
    while True:
        event = await client.push(1e9)
        if isinstance(event.message, m.Assigned):
            continue
        first, end = event.batches[0].base_offset, event.batches[-1].end_offset
        if expected is None:
            assert world.committed <= first <= world.commit_tried, "a group goes on where it committed"
        else:
            assert first == expected, "a group reads each record once, in order"
        expected = world.commit_tried = end
        assert await client.settle(subscription, event) == []
        world.committed = end
        await client.tell(m.Credit(subscription, end - first))


async def _life(world: World, env: SimEnv, last: bool) -> None:
    async with broker_on(env, TEXT), trio.open_nursery() as nursery:
        env.disk.sync_delay_s_max = world.rng.choice([0.002, 0.05])
        nursery.start_soon(until_lost, lambda client: _produce(world, client), env)
        for topic in ("q", "q", "s"):
            nursery.start_soon(until_lost, lambda client, topic=topic: _work(world, topic, client), env)
        nursery.start_soon(until_lost, lambda client: _read(world, client), env)
        if not last:
            await trio.sleep(world.rng.uniform(0.1, 2))
            (env.kill if world.rng.random() < 0.3 else env.crash)()
            await trio.sleep_forever()
        while len(world.sent) < RECORDS * LIVES or not await _is_done(world, env):
            await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def _is_done(world: World, env: SimEnv) -> bool:
    client = await connected(env)
    shown = {topic["name"]: topic for topic in await client.administer("topic.list")}
    await client.stream.aclose()
    return all(topic["queue"]["unsettled"] == 0 for topic in shown.values())


async def _verify(world: World, env: SimEnv) -> None:
    async with broker_on(env, TEXT):
        client = await connected(env)
        stream = await client.fetch("s", bytes_max=1 << 24)
        confirmed = [value for value in world.sent if value in world.confirmed]
        assert [value for value in stream if value in world.confirmed] == confirmed, "all of them, once, in order"
        assert set(stream) <= set(world.sent)
        for topic in ("q", "s"):
            assert set(confirmed) <= world.tried[topic], "each was delivered until somebody settled it"
        assert world.settled_twice == []
        assert world.committed <= len(stream)


@pytest.mark.parametrize("seed", range(10))
def test_nothing_confirmed_is_lost_and_nothing_settled_comes_back(seed: int) -> None:
    async def scenario(env: SimEnv) -> None:
        world = World(seed)
        for life in range(LIVES):
            died = await env.run_until_death(lambda env, life=life: _life(world, env, life == LIVES - 1))
            assert died is (life < LIVES - 1)
            if died:
                env = env.restart()
        await _verify(world, env)

    run_simulation(seed, scenario, virtual_s_max=3600)
