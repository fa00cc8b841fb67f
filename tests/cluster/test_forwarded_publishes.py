"""Publishes at brokers that do not lead the topic: they go on to the one that does."""

from __future__ import annotations

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records
from simulated_time import simulated

from linn.core.batch.batch import SCATTERED
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.key_hash import key_hash
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def apart(world: BrokerWorld, toml: str = "", **settings: object) -> tuple[list[SimBroker], SimBroker, SimBroker]:
    """Brokers with a topic "t", its leader, and another one."""
    brokers = await world.brokers(toml=toml)
    await (await brokers[0].client()).administer("topic.create", name="t", settings={"kind": "both", **settings})
    (leader,) = (await until_led(brokers, "t")).values()
    return brokers, leader, next(it for it in brokers if it is not leader)


async def numbered(client: RawClient, sequence: int, value: str) -> m.Placement:
    """Publish a numbered record, as the producer whose ids the client was given."""
    batch = records([value])
    batch.number(client.welcome.producer_id, 0, sequence, 0)
    answer = await client.call(m.Publish("t", partition=0), [batch])
    placement: m.Placement = answer.placements[0]
    return placement


@simulated
async def test_records_published_anywhere_are_stored_once_and_in_order(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, leader, other = await apart(world)
        client, there = await other.client(), await leader.client()
        tickets = [await client.send(m.Publish("t", partition=0), [records([f"{number}"])]) for number in range(50)]
        places = [(await client.answer(ticket)).message.placements[0] for ticket in tickets]
        assert [place.base_offset for place in places] == list(range(50))
        assert {place.leader_epoch for place in places} == {1}
        assert await there.fetch("t") == [f"{number}" for number in range(50)]


@simulated
async def test_partitions_acks_and_refused_records_are_as_at_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, leader, other = await apart(world, partitions=3, message_bytes_max=100)
        client, there = await other.client(), await leader.client()
        for acks in range(3):
            placement = await client.publish("t", ["x"], partition=2, acks=acks)
            assert (placement.partition, placement.base_offset) == (2, acks)
        (placement,) = (await client.call(m.Publish("t", partition=1), [records(["a", "b" * 200, "c"])])).placements
        assert [(each.code, each.records) for each in placement.refused] == [("message.too_large", [1, 2])]
        assert await there.fetch("t", 1) == ["a", "c"]
        with pytest.raises(Refused) as refusal:
            await client.publish("t", ["x"], partition=7)
        assert refusal.value.code == "topic.partition_unknown"


@simulated
async def test_the_placement_of_a_batch_in_several_partitions_tells_the_leaders_epoch(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, leader, other = await apart(world, partitions=3)
        keys = [b"%d" % number for number in range(20)]
        batch = build_batch(BatchColumns(keys, 0, 1, keys=keys, key_hashes=list(map(key_hash, keys))))
        for broker in (leader, other):
            client = await broker.client()
            (info,) = (await client.call(m.Describe(["t"]))).topics
            (place,) = (await client.call(m.Publish("t"), [batch])).placements
            assert (place.partition, place.base_offset, place.copies) == (-1, -1, 20)
            assert place.leader_epoch == info.partitions[0].leader_epoch == 1
            assert (place.topic_id_high, place.topic_id_low) == (info.id_high, info.id_low) != (0, 0)


@simulated
async def test_a_repeated_batch_is_stored_once_through_any_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world)
        client = await other.client()
        first = await numbered(client, 0, "a")
        assert (await numbered(client, 0, "a")).base_offset == first.base_offset
        third = next(it for it in brokers if it not in (leader, other))
        for broker in (third, leader):
            again = RawClient(await world.env.net.connect(broker.address))
            await again.greet("raw", client.welcome.producer_id, client.welcome.producer_key)
            again.welcome = client.welcome
            assert (await numbered(again, 0, "a")).base_offset == first.base_offset
        await numbered(client, 1, "b")
        assert await (await leader.client()).fetch("t") == ["a", "b"]
        stranger = await other.client()
        stranger.welcome = client.welcome
        with pytest.raises(Refused) as refusal:
            await numbered(stranger, 2, "c")
        assert refusal.value.code == "producer.foreign"


@simulated
async def test_a_publish_waits_for_room_at_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, leader, other = await apart(world, bytes_max=2000, message_bytes_max=1000, kind="queue")
        client, there = await other.client(), await leader.client()
        full = 0
        while True:
            ticket = await client.send(m.Publish("t"), [records(["x" * 500])])
            with trio.move_on_after(2) as scope:
                await client.answer(ticket)
            if scope.cancelled_caught:
                break
            full += 1
        assert 0 < full < 10
        await there.administer("topic.purge", name="t")
        await client.answer(ticket)


@simulated
async def test_the_other_broker_says_what_became_of_a_publish_when_the_leader_dies(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, leader, other = await apart(world)
        client = await other.client()
        await client.publish("t", ["a"])
        leader.env.kill()
        with pytest.raises(Refused) as refusal:
            await client.publish("t", ["b"])
        assert refusal.value.code in ("peer.unreachable", "peer.unknown")
        await leader.ended()
        await leader.start()
        await until_led([leader, other], "t")
        await until(lambda: other.broker.cluster.view.state.sessions.keys() == {1, 2, 3})
        await client.publish("t", ["c"])
        found = await (await leader.client()).fetch("t")
        assert found in (["a", "c"], ["a", "b", "c"])


@simulated
async def test_a_user_without_the_right_publishes_through_no_broker(env: SimEnv) -> None:
    rights = '[roles.r]\n"topic:t" = ["see", "consume"]\n[users.anonymous]\nroles = ["r"]\n'
    toml = '[topics.t]\nkind = "stream"\n' + rights
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=toml)
        (leader,) = (await until_led(brokers, "t")).values()
        for broker in brokers:
            with pytest.raises(Refused) as refusal:
                await (await broker.client()).publish("t", ["x"])
            assert refusal.value.code == "auth.forbidden"
        # The leader checks it again: the other broker may have other users in its file.
        other = next(it for it in brokers if it is not leader)
        other.toml = toml.replace('"consume"', '"consume", "publish"')
        await other.stop()
        await other.start()
        await until(lambda: len(other.broker.cluster.view.state.sessions) == 3)
        with pytest.raises(Refused) as refusal:
            await (await other.client()).publish("t", ["x"])
        assert refusal.value.code == "auth.forbidden"
        assert await (await leader.client()).fetch("t") == []


async def bound(broker: SimBroker, *topics: str) -> RawClient:
    """A client of a broker that has made an exchange "news", bound to topics."""
    client = await broker.client()
    await client.administer("exchange.create", name="news", settings={"type": "fanout"})
    for topic in topics:
        await client.administer("exchange.bind", exchange="news", topic=topic)
    return client


async def to_news(client: RawClient, value: str, sequence: int | None = None) -> m.Placement:
    batch = records([value])
    if sequence is not None:
        batch.number(client.welcome.producer_id, 0, sequence, SCATTERED)
    answer = await client.call(m.Publish("news", to_exchange=True), [batch])
    placement: m.Placement = answer.placements[0]
    return placement


@simulated
async def test_a_publish_to_an_exchange_goes_on_to_the_broker_that_leads_the_topics_behind_it(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, leader, other = await apart(world)
        client = await bound(other, "t")
        placed = [await to_news(client, f"{number}", number) for number in range(5)]
        assert [place.base_offset for place in placed] == list(range(5))
        assert (await to_news(client, "4", 4)).base_offset == 4, "repeated, and stored once"
        third = next(it for it in brokers if it not in (leader, other))
        await until(lambda: third.broker.topics["t"].live_bindings)
        await to_news(await third.client(), "5")
        await to_news(await leader.client(), "6")
        assert await (await leader.client()).fetch("t") == [f"{number}" for number in range(7)]
