"""Transactions in numbers, and what readers wait for because of one that is open."""

from __future__ import annotations

import pytest
import trio
from metric_samples import samples, value
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected, served, simulated
from test_transactions import TOPICS, B, Owner

from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv


def unreadable(broker: Broker) -> dict[str, object]:
    """The records that can't be read, by topic."""
    return {topic: count for (topic,), count in samples(broker, "linn_topic_unreadable_records").items()}


@served(TOPICS)
async def test_ends_are_counted_and_aborts_by_their_reason(broker: Broker, client: RawClient) -> None:
    owner = await Owner.open(client, timeout_ms=5_000)
    aborts = dict.fromkeys(("asked", "timeout", "fenced", "operator"), 0)

    def counted() -> bool:
        found = samples(broker, "linn_transactions_aborted_total")
        return found == {(reason,): count for reason, count in aborts.items()}

    assert counted()
    for commits in (1, 2):
        await owner.publish("s", ["a"])
        assert value(broker, "linn_transactions_open") == 1
        await owner.end(commit=True)
        assert value(broker, "linn_transactions_committed_total") == commits
        assert value(broker, "linn_transactions_open") == 0
    await owner.publish("s", ["a"])
    await owner.end(commit=False)
    aborts["asked"] += 1
    assert counted()
    await owner.publish("s", ["a"])
    await client.administer("transaction.abort", name="billing")
    aborts["operator"] += 1
    owner.number += 1
    assert counted()
    await owner.publish("s", ["a"])
    await trio.sleep(6)
    aborts["timeout"] += 1
    owner.number += 1
    assert counted()
    await owner.publish("s", ["a"])
    await Owner.open(client, branch=B)
    aborts["fenced"] += 1
    assert counted()
    assert value(broker, "linn_transactions_committed_total") == 2


@served(TOPICS)
async def test_the_oldest_open_transaction_has_an_age(broker: Broker, client: RawClient) -> None:
    first, second = await Owner.open(client), await Owner.open(client, "other", branch=B)
    assert value(broker, "linn_transactions_oldest_seconds") == 0
    await first.publish("s", ["a"])
    await trio.sleep(10)
    await second.publish("q", ["b"], B)
    await trio.sleep(5)
    assert value(broker, "linn_transactions_open") == 2
    assert value(broker, "linn_transactions_oldest_seconds") == pytest.approx(15, abs=1)
    await first.end(commit=True)
    assert value(broker, "linn_transactions_oldest_seconds") == pytest.approx(5, abs=1)
    await second.end(commit=False, branches=[B])
    assert value(broker, "linn_transactions_oldest_seconds") == 0


@simulated
async def test_what_readers_wait_for_is_counted_by_topic(env: SimEnv) -> None:
    wide = '[topics.wide]\nkind = "stream"\npartitions = 3\n'
    async with broker_on(env, TOPICS + wide) as broker:
        client = await connected(env)

        def waits_s(topic: str) -> float:
            return value(broker, "linn_topic_unreadable_seconds", topic)

        nothing = dict.fromkeys(("s", "q", "both", "wide"), 0)
        first, second = await Owner.open(client), await Owner.open(client, "other", branch=B)
        await client.publish("s", ["before"])
        assert unreadable(broker) == nothing
        await first.publish("s", ["a", "b"])
        await first.publish("wide", ["c"])
        await trio.sleep(10)
        await second.publish("s", ["d"], B)
        await second.publish("q", ["e"], B)
        await client.publish("s", ["plain"])
        await trio.sleep(5)
        assert unreadable(broker) == nothing | {"s": 4, "wide": 1, "q": 1}
        assert [waits_s(topic) for topic in ("s", "wide", "q", "both")] == pytest.approx([15, 15, 5, 0], abs=1)
        await first.end(commit=False)
        assert unreadable(broker) == nothing | {"s": 3, "q": 1}, "d, plain and the marker"
        assert [waits_s(topic) for topic in ("s", "wide", "q")] == pytest.approx([5, 0, 5], abs=1)
        await second.end(commit=True, branches=[B])
        assert unreadable(broker) == nothing
        assert waits_s("s") == 0


@served(TOPICS)
async def test_a_deleted_topic_holds_nobody_back(broker: Broker, client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.publish("s", ["a"])
    assert [stats.held for stats in broker.measurements.storages.values() if stats.held]
    await client.administer("topic.delete", name="s")
    assert unreadable(broker) == {"q": 0, "both": 0}
    assert [stats.held for stats in broker.measurements.storages.values() if stats.held] == []
    await client.administer("topic.create", name="s", settings={"kind": "stream"})
    assert unreadable(broker) == {"q": 0, "both": 0, "s": 0}


@simulated
async def test_what_an_earlier_start_has_left_open_is_counted_until_there_is_room_to_mark_it(world: SimEnv) -> None:
    async def left_open(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS + TOPICS):
            client = await connected(env)
            owner = await Owner.open(client)
            await owner.publish("s", ["a", "b"])
            env.crash()

    async def without_room(env: SimEnv) -> None:
        room_bytes, env.disk.capacity_bytes = env.disk.capacity_bytes, env.disk.used_bytes
        async with broker_on(env, ALWAYS + TOPICS) as broker:
            assert unreadable(broker)["s"] == 2
            await trio.sleep(20)
            age_s = value(broker, "linn_topic_unreadable_seconds", "s")
            assert age_s == pytest.approx(value(broker, "linn_broker_uptime_seconds"), abs=1)
            assert value(broker, "linn_transactions_open") == 0
            env.disk.capacity_bytes = room_bytes
            await trio.sleep(20)
            assert unreadable(broker)["s"] == 0
            env.crash()

    assert await world.run_until_death(left_open)
    assert await (await after_power_loss(world, ALWAYS + TOPICS)).run_until_death(without_room)
