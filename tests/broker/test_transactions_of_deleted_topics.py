"""Transactions whose topics are deleted before their end, or while it is under way: they end, and so do the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import trio
from raw_client import ALWAYS, RawClient, broker_on, connected
from test_transactions import TOPICS, A, Owner

from linn.core.broker.broker import Broker
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

SLOW_S = 2.0
LONG_S = 60.0


async def ended(client: RawClient, owner: Owner, *, commit: bool) -> str:
    """End the transaction within a bounded time; the error, or ""."""
    with trio.fail_after(LONG_S):
        end = m.EndTransaction(owner.id, owner.epoch, owner.number, commit, [A] if commit else [])
        code = await client.code_of(await client.send(end))
    owner.number += 1
    return code


async def work(client: RawClient, owner: Owner, kind: str) -> str:
    """Write in a topic, hold a record of a queue, or commit a group's offset; the topic."""
    if kind == "wrote":
        await owner.publish("s", ["gone"])
        return "s"
    topic = "q" if kind == "held" else "s"
    await client.publish(topic, ["job"])
    if kind == "held":
        queue = (await client.call(m.Subscribe("q"))).subscription
        event = await client.pull(queue, 1)
    else:
        queue = (await client.call(m.Subscribe("s", "g", credit=10))).subscription
        assert isinstance((await client.push(LONG_S)).message, m.Assigned)
        event = await client.delivery()
    await owner.settle(queue, event.message, event.batches)
    return topic


async def check_next(owner: Owner, other: RawClient, kept: list[str]) -> None:
    """Check that the next transaction of the name works, and what there is."""
    with trio.fail_after(LONG_S):
        await owner.publish("both", ["next"])
        await owner.end(commit=True)
        assert await other.fetch("both") == [*kept, "next"]


def simulated_in_each_way(scenario: Callable[[SimEnv, Broker, str], object]) -> Callable[..., None]:
    @pytest.mark.parametrize("kind", ["wrote", "held", "offset"])
    @pytest.mark.parametrize("seed", range(3))
    def test(kind: str, seed: int) -> None:
        async def run(env: SimEnv) -> None:
            async with broker_on(env, ALWAYS + TOPICS) as broker:
                await scenario(env, broker, kind)  # type: ignore[misc]

        run_simulation(seed, run)

    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    return test


@simulated_in_each_way
async def test_a_topic_is_deleted_before_the_commit(env: SimEnv, broker: Broker, kind: str) -> None:
    client, other = await connected(env), await connected(env)
    owner = await Owner.open(client)
    await owner.publish("both", ["kept"])
    topic = await work(client, owner, kind)
    await other.administer("topic.delete", name=topic)
    assert await ended(client, owner, commit=True) == ""
    await check_next(owner, other, ["kept"])


@simulated_in_each_way
async def test_a_topic_is_deleted_before_the_abort(env: SimEnv, broker: Broker, kind: str) -> None:
    client, other = await connected(env), await connected(env)
    owner = await Owner.open(client)
    await owner.publish("both", ["lost"])
    topic = await work(client, owner, kind)
    await other.administer("topic.delete", name=topic)
    assert await ended(client, owner, commit=False) == ""
    await check_next(owner, other, [])


@simulated_in_each_way
async def test_a_topic_is_deleted_while_a_commit_is_under_way(env: SimEnv, broker: Broker, kind: str) -> None:
    client, other = await connected(env), await connected(env)
    owner = await Owner.open(client)
    await owner.publish("both", ["kept"])
    env.disk.sync_delay_s_max = SLOW_S
    topic = await work(client, owner, kind)
    codes: list[str] = []

    async def end() -> None:
        codes.append(await ended(client, owner, commit=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        await trio.sleep(SLOW_S / 20)
        with contextlib.suppress(EOFError):
            await other.administer("topic.delete", name=topic)
    assert codes == [""]
    await check_next(owner, other, ["kept"])


@simulated_in_each_way
async def test_a_topic_is_deleted_before_the_markers_of_a_commit_are_durable(
    env: SimEnv, broker: Broker, kind: str
) -> None:
    client, other = await connected(env), await connected(env)
    owner = await Owner.open(client)
    topic = await work(client, owner, kind)
    env.disk.sync_delay_s_max = SLOW_S
    assert await ended(client, owner, commit=True) == ""
    await other.administer("topic.delete", name=topic)
    await check_next(owner, other, [])
