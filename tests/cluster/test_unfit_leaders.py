"""Leaders whose disk is full, and replicas whose log is damaged: others lead, and what was confirmed is there."""

from __future__ import annotations

import pytest
import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused
from replicas_seen import ALL, agree, content, in_sync
from replicated_topic import replicated_topic, until_alike
from simulated_time import simulated
from test_replicated_topics import sessions

from linn.core.cluster.entries import PartEntry
from linn.core.replicas.topic_replica import APPENDS_FAIL_S
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

RECORD = "x" * 2_000


def part_of(broker: SimBroker) -> PartEntry:
    """The topic's entry, as a broker knows it."""
    cluster = broker.broker.cluster
    assert cluster is not None
    return cluster.view.state.parts[f"parts/{broker.broker.topics['t'].id}/0"]


FREE_BYTES = 1 << 30
AT = 5_000
"""A place in the third record."""


def make_room(broker: SimBroker) -> None:
    """Let a disk take records again."""
    broker.env.disk.capacity_bytes = broker.env.disk.used_bytes + FREE_BYTES


def fill(broker: SimBroker) -> None:
    """Let a disk take nothing more."""
    broker.env.disk.capacity_bytes = broker.env.disk.used_bytes


async def filled(client: RawClient, count: int) -> list[str]:
    """Publish records that all replicas confirm."""
    values = [f"{number} {RECORD}" for number in range(count)]
    for value in values:
        await client.publish("t", [value], acks=ALL)
    return values


async def published(client: RawClient, value: str, within_s: float = 60.0) -> None:
    """Publish until it is confirmed by all replicas, whatever refuses it meanwhile."""
    with trio.fail_after(within_s):
        while True:
            try:
                await client.publish("t", [value], acks=ALL)
                return
            except Refused:
                await trio.sleep(0.2)


async def fetched(broker: SimBroker, count: int) -> list[str]:
    """The first records of the topic, each read until it is not refused."""
    client, found = await broker.client(), list[str]()
    with trio.fail_after(60):
        while len(found) < count:
            try:
                found += await client.fetch("t", offset=len(found))
            except Refused:
                await trio.sleep(0.2)
    return found


async def damage(broker: SimBroker, at: int) -> None:
    """Flip a bit of the topic's log on a disk."""
    file = broker.env.disk.open("data/segmented-log/t/0/00000000000000000000.log")
    byte = (await file.read(at, 1))[0]
    file.write_at(bytes([byte ^ 1]), at)
    file.close()


# --- full disks ------------------------------------------------------------------------------------------------------


@simulated
async def test_a_leader_whose_disk_is_full_lets_another_broker_lead_and_publishing_goes_on(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        door = others[0]
        client = await door.client()
        values = await filled(client, 5)
        fill(leader)
        began_s = trio.current_time()
        await published(client, "more")
        assert APPENDS_FAIL_S <= trio.current_time() - began_s < APPENDS_FAIL_S + 15
        part = part_of(door)
        assert part.leader != leader.number
        assert await fetched(door, 6) == [*values, "more"]
        await until(lambda: leader.number not in in_sync(door))
        make_room(leader)
        await until_alike(door, [leader, *others])
        assert part_of(door).unfit == ()
        assert part_of(door).epoch == part.epoch, "the topic stays where it is"


@simulated
async def test_a_leader_whose_disk_has_no_room_for_one_ack_lets_another_broker_lead(env: SimEnv) -> None:
    """Nothing else is to be written."""
    async with replicated_topic(env, kind="queue", lease="1h") as (leader, others):
        client, door = await leader.client(), others[0]
        await filled(client, 1)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        event = await client.pull(subscription, 1)
        fill(leader)
        with pytest.raises(Refused, match="full"):
            await client.settle(subscription, event)
        began_s = trio.current_time()
        await until(lambda: part_of(door).leader != leader.number)
        assert APPENDS_FAIL_S <= trio.current_time() - began_s < APPENDS_FAIL_S + 15


@simulated
async def test_a_topic_is_not_moved_to_and_fro_where_all_disks_are_full(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        values = await filled(client, 5)
        for broker in [leader, *others]:
            fill(broker)
        with pytest.raises(trio.TooSlowError):
            await published(await others[0].client(), "refused", within_s=100)
        assert part_of(leader).epoch <= 3, "each broker tried once"
        assert await fetched(others[0], 5) == values
        for broker in [leader, *others]:
            make_room(broker)
        await published(await others[0].client(), "more")
        await until_alike(leader, [leader, *others])
        await until(lambda: part_of(leader).unfit == ())


@simulated
async def test_a_leader_without_another_member_leads_on_with_a_full_disk(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (leader,) = await world.brokers(1)
        client = await leader.client()
        await client.administer("topic.create", name="t", settings={"replicas": 1, "kind": "stream"})
        await until_led([leader], "t")
        values = await filled(client, 5)
        fill(leader)
        with pytest.raises(trio.TooSlowError):
            await published(client, "refused", within_s=30)
        assert part_of(leader).epoch == 1
        make_room(leader)
        await published(client, "more")
        assert await fetched(leader, 6) == [*values, "more"]


# --- damaged logs ----------------------------------------------------------------------------------------------------


@simulated
async def test_a_leader_that_reads_a_damaged_batch_lets_another_broker_lead_and_copies_anew(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        values = await filled(await leader.client(), 20)
        await until(lambda: agree([leader, *others], "t"))
        await damage(leader, AT)
        door = others[0]
        assert await fetched(door, 20) == values
        assert part_of(door).leader != leader.number
        await until_alike(door, [leader, *others])
        assert await content(leader, "t", 0) == await content(door, "t", 0)
        assert part_of(door).unfit == ()


@simulated
async def test_a_leader_that_reads_a_damaged_batch_for_a_follower_lets_another_broker_lead(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        values = await filled(await leader.client(), 20)
        await until(lambda: agree([leader, *others], "t"))
        empty, third = others
        empty.env.kill()
        await empty.ended()
        empty.replace_disk()
        await until(lambda: empty.number not in sessions(leader))
        await damage(leader, AT)
        await empty.start()
        await until(lambda: part_of(third).leader == third.number)
        await until_alike(third, [leader, *others])
        assert await fetched(empty, 20) == values


@simulated
async def test_a_follower_that_finds_its_log_damaged_at_a_start_copies_it_anew(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        values = await filled(await leader.client(), 20)
        await until(lambda: agree([leader, *others], "t"))
        hurt = others[0]
        hurt.env.kill()
        await hurt.ended()
        hurt.env = hurt.env.restart()
        await damage(hurt, AT)
        await hurt.start()
        await until(lambda: part_of(leader).unfit == () and len(in_sync(leader)) == 3 and agree([leader, *others], "t"))
        assert await content(hurt, "t", 0) == await content(leader, "t", 0)
        assert await fetched(hurt, 20) == values


@simulated
async def test_the_last_member_keeps_its_damaged_log(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (leader,) = await world.brokers(1)
        client = await leader.client()
        await client.administer("topic.create", name="t", settings={"replicas": 1, "kind": "stream"})
        await until_led([leader], "t")
        await filled(client, 20)
        await damage(leader, AT)
        for _ in range(2):
            with pytest.raises(Refused, match="damaged"):
                await client.fetch("t", offset=2)
            await trio.sleep(12)
        assert part_of(leader).isr == (1,)
