"""Delayed records of replicated topics: the next leader goes on, and each record comes once, at its time."""

from __future__ import annotations

from functools import partial
from random import Random
from uuid import UUID

import pytest
import trio
from broker_world import SimBroker, broker_world
from cluster_world import until
from raw_client import RawClient, Refused, records
from replicas_seen import ALL, in_sync
from replicated_topic import next_leader, replicated_topic
from simulated_time import simulated
from test_exchanges_over_brokers import content, spread

from linn.core.batch.batch import SCATTERED, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.dead_letters import store_due
from linn.core.metadata.levels import SCHEDULE_LEVEL
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def confirmed(client: RawClient, values: list[str], due_ms: int) -> bool:
    """Publish records for a time; False: it is not known whether they are stored."""
    try:
        await client.call(m.Publish("t", acks=ALL), [records(values, due_ms=due_ms)])
    except (Refused, trio.BrokenResourceError, trio.TooSlowError):
        return False
    return True


async def come(client: RawClient) -> list[RecordBatch]:
    found: list[RecordBatch] = []
    offset = 0
    while batches := (await client.ask(m.Fetch("t", 0, offset, bytes_max=1 << 20))).batches:
        found += batches
        offset = batches[-1].end_offset
    return found


def all_follow(leader: SimBroker) -> bool:
    return len(in_sync(leader)) == 3


def values_in(batches: list[RecordBatch]) -> list[str]:
    return [(record.value or b"").decode() for batch in batches for record in batch.records()]


@pytest.mark.parametrize("kind", ["queue", "stream"])
@simulated
async def test_a_record_comes_at_the_next_leader_after_it_was_the_turn(env: SimEnv, kind: str) -> None:
    async with replicated_topic(env, kind=kind) as (leader, others):
        client = await leader.client()
        due_ms = leader.env.clock.now_ms() + 20_000
        assert await confirmed(client, ["later"], due_ms)
        assert await confirmed(client, ["for years"], due_ms + 10**11)
        leader.env.kill()
        await leader.ended()
        second = await next_leader(others)
        client = await second.client()
        assert await client.fetch("t") == []
        await until(lambda: second.broker.topics["t"].ends()[0] == 1, 60)
        assert second.env.clock.now_ms() >= due_ms
        (batch,) = await come(client)
        assert values_in([batch]) == ["later"]
        assert batch.append_time_ms >= due_ms
        assert second.broker.topics["t"].timing.waiting_count == 1


@simulated
async def test_the_next_leader_knows_what_is_scheduled_and_what_was_cancelled(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream", status="7d") as (leader, others):
        client = await leader.client()
        for number in range(3):
            batch = records(["later"], due_ms=leader.env.clock.now_ms() + 10**9, id=UUID(int=number))
            await client.call(m.Publish("t", acks=ALL), [batch])
        await client.administer("scheduled.cancel", topic="t", ids=["0/1"])
        leader.env.kill()
        await leader.ended()
        client = await (await next_leader(others)).client()
        ids = [str(UUID(int=number)) for number in range(4)]
        found = await client.administer("message.status", topic="t", ids=ids)
        assert [each["state"] for each in found] == ["scheduled", "cancelled", "scheduled", "unknown"]


@simulated
async def test_any_broker_takes_a_delayed_record(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        assert await confirmed(await others[0].client(), ["a"], leader.env.clock.now_ms() + 2_000)
        assert leader.broker.topics["t"].timing.waiting_count == 1
        assert await (await others[1].client()).fetch("__d.t", unsettled=True) == ["a"]
        await until(lambda: leader.broker.topics["t"].ends()[0] == 1, 30)


@pytest.mark.parametrize("seed", range(10))
@simulated
async def test_each_record_comes_once_and_none_early_while_leaders_die(env: SimEnv, seed: int) -> None:
    rng, sure, dues, count = Random(seed), set[str](), dict[str, int](), 0
    async with replicated_topic(env, kind="stream") as (leader, others):
        brokers: list[SimBroker] = [leader, *others]
        for _ in range(3):
            client = await leader.client()
            for _ in range(rng.randint(1, 8)):
                values = [str(number) for number in range(count, count + rng.randint(1, 50))]
                count += len(values)
                due_ms = leader.env.clock.now_ms() + rng.choice([50, 200, 1_000, 5_000, 30_000])
                dues.update(dict.fromkeys(values, due_ms))
                if await confirmed(client, values, due_ms):
                    sure.update(values)
            await trio.sleep(rng.choice([0, 0.05, 0.2, 1]))
            leader.env.kill()
            await leader.ended()
            second = await next_leader([it for it in brokers if it is not leader])
            await leader.start()
            leader = second
            await until(partial(all_follow, leader), 60)
        await until(lambda: leader.broker.topics["t"].timing.waiting_count == 0, 120)
        batches = await come(await leader.client())
        found = values_in(batches)
        assert len(found) == len(set(found)), "none comes twice"
        assert sure <= set(found), "none is lost"
        assert all(batch.append_time_ms >= dues[value] for batch in batches for value in values_in([batch]))


@simulated
async def test_delays_are_refused_while_brokers_may_be_of_the_version_before(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(level=SCHEDULE_LEVEL - 1)
        client = await brokers[0].client()
        await client.administer("topic.create", name="t", settings={"kind": "stream"})
        leader = await next_leader(brokers)
        for broker in brokers:
            with pytest.raises(Refused, match=r"message\.unsupported.*linn cluster upgrade"):
                await (await broker.client()).call(m.Publish("t"), [records(["a"], delay_ms=1_000)])
        await trio.sleep(2)
        assert (leader.broker.topics["t"].ends()[0], leader.broker.topics["t"].timing.queues) == (0, {})


@simulated
async def test_topics_of_several_leaders_behind_an_exchange_get_a_record_at_its_time(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world)
        batch = records(["a", "b"], delay_ms=5_000)
        await (await brokers[0].client()).call(m.Publish("news", to_exchange=True), [batch])
        waiting = [leader.broker.topics[name].timing.waiting_count for name, leader in led.items()]
        assert (waiting, await content(led)) == ([2, 2, 2], {"a": [], "b": [], "c": []})
        await trio.sleep(6)
        assert await content(led) == {name: ["a", "b"] for name in "abc"}


@simulated
async def test_a_due_record_whose_id_is_known_leaves_when_the_one_with_its_id_is_committed(env: SimEnv) -> None:
    def batch() -> RecordBatch:
        return build_from_records([Record(value=b"a", id=UUID(int=1))], base_id=1)

    async with replicated_topic(env, dedup="1h", min_in_sync=2) as (leader, others):
        net, topic = leader.world.env.world, leader.broker.topics["t"]
        for other in others:
            net.cut(leader.env.name, other.env.name)
        await (await leader.client()).call(m.Publish("t"), [batch()])
        assert topic.partitions[0].high_watermark == 0
        (step := batch()).number(-1, 0, 0, SCATTERED)
        with trio.move_on_after(1) as scope:
            await store_due(topic, 0, step)
        assert scope.cancelled_caught, "what it is like may be lost with this leader, and then so would be the record"
        for other in others:
            net.heal(leader.env.name, other.env.name)
        with trio.fail_after(5):
            await store_due(topic, 0, step)
        assert topic.ends()[0] == 1
