"""Consumers at other brokers than their topic's leader: chosen by priority, single active, and the ends of queues."""

from __future__ import annotations

import trio
from broker_world import broker_world
from raw_client import values
from simulated_time import simulated
from test_consumers_elsewhere import apart, subscribed

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


@simulated
async def test_a_priority_counts_at_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, third) = await apart(world, kind="queue", lease="1h")
        low, high, publisher = await leader.client(), await door.client(), await third.client()
        await subscribed(low, credit=10)
        await subscribed(high, credit=2, priority=1)
        for value in "abc":
            await publisher.publish("t", [value])
        found = [values((await high.delivery()).batches) for _ in range(2)]
        assert (found, values((await low.delivery()).batches)) == ([["a"], ["b"]], ["c"])


@simulated
async def test_one_consumer_of_all_doors_is_active_and_a_lost_one_is_followed_by_the_next(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="connection", consumers="one")
        first, second, publisher = await door.client(), await third.client(), await third.client()
        assert (await subscribed(first, credit=2)).lease_ms == m.CONNECTION_LEASE_MS
        assert (await subscribed(second, credit=2)).stands_by
        for value in "abc":
            await publisher.publish("t", [value])
        assert [values((await first.delivery()).batches) for _ in range(2)] == [["a"], ["b"]]
        shown = (await publisher.administer("subscription.show", topic="t"))["by_consumer"]
        assert [it["active"] for it in shown] == [True, False]
        assert await second.is_silent(60)
        await first.stream.aclose()
        again = await second.delivery()
        assert (values(again.batches), again.message.attempt) == (["a", "b"], 2)
        assert second.active == [(1, True)]
        assert await second.is_silent(1)
        assert await second.settle(1, again) == []
        await second.tell(m.Credit(1, 2))
        assert values((await second.delivery()).batches) == ["c"]


@simulated
async def test_the_leader_deletes_a_queue_that_nobody_uses_and_all_brokers_know(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, _) = await apart(world, kind="queue", expires="30s")
        client, other = await door.client(), await leader.client()
        await subscribed(client)
        await trio.sleep(60)
        assert [it["name"] for it in await other.administer("topic.list")] == ["t"]
        await client.call(m.Unsubscribe(1))
        await trio.sleep(35)
        for each in (client, other):
            assert [it["name"] for it in await each.administer("topic.list")] == []
