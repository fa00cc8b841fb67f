"""Limits, known ids and statuses of topics with replicas: the next leader goes on with them."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from raw_client import RawClient, simulated
from replicas_seen import ALL
from replicated_topic import next_leader, replicated_topic, until_alike
from test_message_status import small_runs
from test_replicated_topics import Killing, kill, power_off

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def publish_known(client: RawClient, id: int) -> int:
    batch = build_from_records([Record(value=b"%d" % id, id=UUID(int=id))], base_id=0)
    answer = await client.call(m.Publish("t", partition=0, acks=ALL), [batch])
    return int(answer.placements[0].base_offset)


@pytest.mark.parametrize("end", [kill, power_off])
@simulated
async def test_the_next_leader_knows_the_ids_of_messages(env: SimEnv, end: Killing) -> None:
    async with replicated_topic(env, dedup="5m") as (leader, others):
        client = await leader.client()
        assert [await publish_known(client, id) for id in range(4)] == [0, 1, 2, 3]
        assert len(await client.taken("t", count=2)) == 2
        await end(leader)
        second = await next_leader(others)
        client = await second.client()
        assert [await publish_known(client, id) for id in (3, 0, 4, 1)] == [3, 0, 4, 1]
        assert sorted(await client.taken("t")) == ["2", "3", "4"]
        await leader.start()
        await until_alike(second, [leader, *others])


@pytest.mark.parametrize("end", [kill, power_off])
@simulated
async def test_the_next_leader_goes_on_within_the_limit(env: SimEnv, end: Killing) -> None:
    async with replicated_topic(env, records_max=3, overflow="drop-head") as (leader, others):
        client = await leader.client()
        for number in range(6):
            await client.publish("t", [str(number)], acks=ALL)
            await trio.sleep(0.2)
        await end(leader)
        second = await next_leader(others)
        client = await second.client()
        await client.publish("t", ["6"], acks=ALL)
        await trio.sleep(1)
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 3
        assert await client.taken("t") == ["4", "5", "6"]
        await leader.start()
        await until_alike(second, [leader, *others])


async def states(client: RawClient, *ids: int) -> list[str]:
    found = await client.administer("message.status", topic="t", ids=[str(UUID(int=id)) for id in ids])
    return [each["state"] for each in found]


@pytest.mark.parametrize("end", [kill, power_off])
@simulated
async def test_any_broker_and_the_next_leader_tell_what_became_of_messages(env: SimEnv, end: Killing) -> None:
    async with replicated_topic(env, status="7d") as (leader, others):
        client, elsewhere = await leader.client(), await others[0].client()
        assert [await publish_known(client, id) for id in range(4)] == [0, 1, 2, 3]
        subscription = (await client.call(m.Subscribe("t"))).subscription
        for verdict in (m.Verdict.ACK, m.Verdict.REJECT):
            await client.settle(subscription, await client.pull(subscription, records_max=1), verdict)
        await client.pull(subscription, records_max=1)
        await trio.sleep(1)
        before = ["settled", "dead", "delivered", "stored", "unknown"]
        assert await states(elsewhere, *range(5)) == await states(client, *range(5)) == before
        await end(leader)
        second = await next_leader(others)
        for broker in others:
            assert (await states(await broker.client(), *range(5)))[:2] == ["settled", "dead"]
        assert (await states(await second.client(), *range(5)))[3:] == ["stored", "unknown"]
        await leader.start()
        await until_alike(second, [leader, *others])
        assert (await states(await leader.client(), 1)) == ["dead"]


@pytest.mark.parametrize("end", [kill, power_off])
@simulated
async def test_the_next_leader_has_the_ids_of_records_that_are_gone(env: SimEnv, end: Killing) -> None:
    ids = range(40)
    with small_runs():
        async with replicated_topic(env) as (leader, others):
            client = await leader.client()
            await client.administer("topic.alter", name="t", settings={"status": "7d"})
            for id in ids:
                assert await publish_known(client, id) == id
            subscription = (await client.call(m.Subscribe("t"))).subscription
            for id in ids:
                verdict = m.Verdict.REJECT if id % 5 == 0 else m.Verdict.ACK
                await client.settle(subscription, await client.pull(subscription, records_max=1), verdict)
            await trio.sleep(30)
            topic = leader.broker.topics["t"]
            assert topic.partitions[0].start_offset >= 32
            wanted = ["settled" if id % 5 else "dead" for id in ids]
            assert await states(client, *ids) == wanted
            await end(leader)
            second = await next_leader(others)
            assert await states(await second.client(), *ids) == wanted
            assert await publish_known(await second.client(), 50) == 40
            await leader.start()
            await until_alike(second, [leader, *others])
            await end(second)
            third = await next_leader([it for it in (leader, *others) if it is not second])
            assert await states(await third.client(), *ids) == wanted
