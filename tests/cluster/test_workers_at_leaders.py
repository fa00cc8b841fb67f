"""Workers of a queue when its leadership ends: each goes on at the next leader, wherever it is connected."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import msgspec
import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world
from cluster_world import until
from replicas_seen import ALL, agree, in_sync, replica_at
from simulated_time import simulated
from test_clients_at_leaders import apart, client_of
from test_unfit_leaders import part_of

from linn.client import Consumer
from linn.core.cluster.entries import ClusterState, PartEntry
from linn.core.cluster.part_store import view_of
from linn.core.metadata.store import NO_LEASE
from linn.errors import DeliveryNotCurrent, NotLeader
from linn.testing.sim_env import SimEnv

COUNT = 40
SLOW_S = 0.8
PARTITIONS = 20
GOES_ON_S = 15.0
"""Time in which a worker has what is left, with the end of a lease in it."""

PLACES = pytest.mark.parametrize("place", ["leader", "follower", "third", "passed on"])


def lead(world: BrokerWorld, leader: SimBroker, topic: str = "t") -> None:
    """Let a broker lead a topic from now on, as the controller does."""
    content, cluster = world.store.content(), leader.broker.cluster
    assert cluster is not None
    key = f"parts/{content[f'topics/{topic}'].value['id']}/0"
    part = msgspec.convert(content[key].value, PartEntry)
    session = cluster.view.state.sessions[leader.number].session
    now = msgspec.structs.replace(part, leader=leader.number, session=session, epoch=part.epoch + 1)
    world.store.put_all("test", {key: msgspec.json.encode(now)}, {}, NO_LEASE)


async def take_rest(worker: Consumer, left: set[bytes]) -> None:
    """Take messages, and ack each, until none is left. An ack may be refused: the message comes again, or was kept."""
    with trio.fail_after(GOES_ON_S):
        while left:
            message = await anext(worker)
            assert message.value is not None
            left.discard(message.value)
            with suppress(NotLeader, DeliveryNotCurrent):
                await message.ack()


@pytest.mark.parametrize("how", ["another leads", "its session ends", "it leads again"])
@PLACES
@simulated
async def test_a_worker_goes_on_whose_ack_is_not_committed_when_a_leadership_ends(
    env: SimEnv, how: str, place: str
) -> None:
    """Nothing is published meanwhile, which could wake it."""
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world, kind="queue", replicas=3, lease="5s")
        third = next(it for it in brokers if it not in (leader, other))
        at = {"leader": leader, "follower": other, "third": third, "passed on": other}[place]
        if place == "passed on":
            world.env.world.cut("client", leader.env.name)
        left = {b"%d" % number for number in range(COUNT)}
        async with client_of(world, leader, other) as client, client.producer("t") as producer:
            await producer.publish_many([b"%d" % number for number in range(COUNT)])
        async with client_of(world, at) as client, client.consumer("t", prefetch=2) as worker:
            await take_rest(worker, {b"0"})
            left.remove(b"0")
            world.env.world.cut(leader.env.name, third.env.name)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_rest, worker, left)
                await trio.sleep(1)
                assert len(left) > COUNT - 4, "acks wait for the third broker"
                if how == "its session ends":
                    world.store.cut(leader.env.name)
                    world.store.end_leases(leader.env.name)
                else:
                    lead(world, other)
                if how == "it leads again":
                    await until(lambda: not leader.broker.topics["t"].partitions)
                    lead(world, leader)
                await until(lambda: part_of(other).epoch > 1)
                world.store.heal(leader.env.name)
                world.env.world.heal(leader.env.name, third.env.name)


@PLACES
@simulated
async def test_a_worker_goes_on_at_a_leader_that_leads_again_before_it_could_resign(env: SimEnv, place: str) -> None:
    """Its catalog waits for the metadata store, for a change that came before."""
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world, kind="queue", replicas=3, lease="5s")
        third = next(it for it in brokers if it not in (leader, other))
        at = {"leader": leader, "follower": other, "third": third, "passed on": other}[place]
        if place == "passed on":
            world.env.world.cut("client", leader.env.name)
        admin = await leader.client()
        async with client_of(world, at) as client, client.consumer("t") as worker:
            async with client_of(world, other) as door, door.producer("t") as producer:
                await producer.publish_many([b"1", b"2"])
                await (await anext(worker)).ack()
                world.store.slow(leader.env.name, (SLOW_S, SLOW_S))
                async with trio.open_nursery() as nursery:
                    create = partial(admin.administer, name="late", settings={"kind": "queue"})
                    nursery.start_soon(create, "topic.create")
                    await trio.sleep(SLOW_S / 2)
                    for next_leader in (other, leader):
                        epoch = part_of(leader).epoch
                        lead(world, next_leader)
                        await until(lambda: part_of(leader).epoch > epoch)  # noqa: B023
                world.store.slow(leader.env.name, world.store.delay_s)
                await producer.publish(b"3")
            with trio.fail_after(GOES_ON_S):
                left = {b"2", b"3"}
                while left:
                    message = await anext(worker)
                    await message.ack()
                    left.discard(message.value)


def lead_at_once(world: BrokerWorld, leader: SimBroker, told: SimBroker) -> None:
    """Let a broker lead topic "t", of which another one hears before anything else happens."""
    lead(world, leader)
    snapshot, replica = world.store.load(), replica_at(told, "t")
    assert replica is not None
    part = view_of(ClusterState.of(snapshot.revision, snapshot.entries), replica.key)
    assert part is not None
    replica.viewed(part)


async def until_half_open(broker: SimBroker) -> None:
    """Wait, without time passing, until the first parts of the queue are open, and not the last one."""
    partitions = broker.broker.topics["t"].partitions
    while not (len(partitions) == PARTITIONS and partitions[0].on_void):
        await trio.lowlevel.checkpoint()
    assert not partitions[PARTITIONS - 1].on_void


async def check_works(world: BrokerWorld, leader: SimBroker) -> None:
    """Check that a new record of the first partition is delivered and its ack is committed."""
    async with client_of(world, leader) as client, client.producer("t") as producer:
        await producer.publish_many([b"1"], partition=0)
        async with client.consumer("t") as worker:
            with trio.fail_after(GOES_ON_S):
                await (await anext(worker)).ack()


@pytest.mark.parametrize("leads_again", [False, True])
@simulated
async def test_a_broker_that_led_until_it_opened_the_topic_follows_or_leads_again(
    env: SimEnv, leads_again: bool
) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world, kind="queue", replicas=3, partitions=PARTITIONS)
        client, replica = await leader.client(), replica_at(leader, "t")
        assert replica is not None
        for partition in range(PARTITIONS):
            await client.publish("t", ["0"], acks=ALL, partition=partition)
        async with client_of(world, leader) as before, before.consumer("t") as worker:
            for _ in range(PARTITIONS):
                await (await anext(worker)).ack()
        lead_at_once(world, other, leader)
        await until(lambda: not replica.serves)
        lead_at_once(world, leader, leader)
        await until_half_open(leader)
        lead_at_once(world, other, leader)
        if leads_again:
            lead_at_once(world, leader, leader)
        await check_works(world, leader)
        await until(lambda: in_sync(leader) == (1, 2, 3) and agree(brokers, "t"))
