"""Dead letters whose topic is led by another broker than the queue's: each is copied there once, whatever fails."""

from __future__ import annotations

from random import Random

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, records
from simulated_time import simulated

from linn.core.batch.record import Record
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

COUNT = 100


async def apart(world: BrokerWorld, **settings: object) -> tuple[list[SimBroker], SimBroker, SimBroker]:
    """Three brokers, the leader of a queue "q", and the leader of its dead-letter topic "d"."""
    brokers = await world.brokers()
    client = await brokers[0].client()
    await client.administer("topic.create", name="d", settings={"kind": "both", **settings})
    await client.administer("topic.create", name="q", settings={"kind": "queue", "dead_letter": "d"})
    led = await until_led(brokers, "q", "d")
    assert led["q"] is not led["d"]
    return brokers, led["q"], led["d"]


async def reject(client: RawClient, values: list[str], **properties: object) -> None:
    """Publish records to the queue, and reject them."""
    await client.call(m.Publish("q", partition=0), [records(values, **properties)])
    worker = (await client.call(m.Subscribe("q"))).subscription
    left = len(values)
    while left:
        event = await client.pull(worker, 1000, wait_max_ms=1000)
        left -= sum(batch.count for batch in event.batches)
        await client.settle(worker, event, m.Verdict.REJECT)
    await client.call(m.Unsubscribe(worker))


async def dead(client: RawClient, topic: str = "d") -> list[Record]:
    found: list[Record] = []
    while batches := (await client.ask(m.Fetch(topic, 0, len(found), bytes_max=1 << 20))).batches:
        found += [record for batch in batches for record in batch.records()]
    return found


async def until_settled(broker: SimBroker) -> None:
    """Wait until the queue has no dead record left."""
    await until(lambda: broker.broker.topic("q").led_by is None)
    (partition_queue,) = broker.broker.topic("q").queue.partition_queues
    await until(lambda: not partition_queue.subscription.dead_count, 120)


async def alive(brokers: list[SimBroker]) -> None:
    """Wait until all brokers are known to all, and the topics are led."""
    await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 3 for it in brokers))
    await until_led(brokers, "q", "d")


@simulated
async def test_dead_letters_are_copied_to_a_topic_of_another_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, queue, target = await apart(world)
        client, there = await queue.client(), await target.client()
        await reject(client, [f"{number}" for number in range(COUNT)], labels={"own": 1})
        await until_settled(queue)
        found = await dead(there)
        assert [record.value for record in found] == [b"%d" % number for number in range(COUNT)]
        assert [record.labels["linn.dead.offset"] for record in found] == list(range(COUNT))
        assert {(record.labels["linn.dead.topic"], record.labels["own"]) for record in found} == {("q", 1)}
        assert (await client.administer("topic.show", name="q"))["queue"]["unsettled"] == 0


@simulated
async def test_a_copy_keeps_what_the_dead_letter_topic_would_not_take_from_a_client(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, queue, target = await apart(world, kind="stream", message_bytes_max=10)
        client, there = await queue.client(), await target.client()
        await reject(client, ["x" * 100])
        await until_settled(queue)
        assert [record.value for record in await dead(there)] == [b"x" * 100]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("victim", ["queue", "target", "link"])
@simulated
async def test_each_dead_letter_is_copied_once_whatever_fails(env: SimEnv, seed: int, victim: str) -> None:
    async with broker_world(env, seed) as world:
        brokers, queue, target = await apart(world)
        rng, net, machines = Random(seed), world.env.world, [f"machine{it.number}" for it in (queue, target)]
        net.slow(*machines, delay_s=(0.01, 0.05))
        client = await queue.client()
        for part in range(3):
            await reject(client, [f"{number}" for number in range(part * COUNT, (part + 1) * COUNT)])
            await trio.sleep(rng.uniform(0, 0.4))
            if victim == "link":
                fault = rng.choice([net.cut, net.cut_one_way, net.sever])
                fault(*rng.sample(machines, 2))
                await trio.sleep(rng.uniform(0, 10))
                net.heal(*machines)
            else:
                struck = queue if victim == "queue" else target
                struck.env.kill()
                await struck.ended()
                await trio.sleep(rng.uniform(0, 10))
                await struck.start()
                await alive(brokers)
                client = await queue.client()
        await until_settled(queue)
        found = [record.labels["linn.dead.offset"] for record in await dead(await target.client())]
        assert sorted(found) == list(range(3 * COUNT))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("victim", ["queue", "target"])
@simulated
async def test_topics_of_several_leaders_behind_an_exchange_get_one_copy_each_whatever_fails(
    env: SimEnv, seed: int, victim: str
) -> None:
    async with broker_world(env, seed) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        await client.administer("exchange.create", name="graves", settings={"type": "fanout"})
        for name in "def":
            settings = {"kind": "stream", "bindings": [{"exchange": "graves"}]}
            await client.administer("topic.create", name=name, settings=settings)
        await client.administer("topic.create", name="q", settings={"dead_letter_exchange": "graves"})
        led = await until_led(brokers, *"defq")
        queue, rng = led["q"], Random(seed)
        assert {led[name].number for name in "def"} != {queue.number}
        target = next(led[name] for name in "def" if led[name] is not queue)
        client = await queue.client()
        for part in range(3):
            await reject(client, [f"{number}" for number in range(part * COUNT, (part + 1) * COUNT)])
            await trio.sleep(rng.uniform(0, 0.4))
            struck = queue if victim == "queue" else target
            struck.env.kill()
            await struck.ended()
            await trio.sleep(rng.uniform(0, 10))
            await struck.start()
            await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 3 for it in brokers))
            await until_led(brokers, *"defq")
            client = await queue.client()
        await until_settled(queue)
        for name in "def":
            found = [record.labels["linn.dead.offset"] for record in await dead(await led[name].client(), name)]
            assert sorted(found) == list(range(3 * COUNT)), f"{name} has one copy of each"


@simulated
async def test_dead_letters_wait_for_room_and_for_a_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, queue, target = await apart(world, bytes_max=40_000, message_bytes_max=1000, overflow="reject")
        await reject(await queue.client(), [f"{number}" * 250 for number in range(100)])
        await trio.sleep(30)
        copied = len(await dead(await target.client()))
        assert 0 < copied < 100
        await target.stop()
        await trio.sleep(30)
        await target.start()
        await alive(brokers)
        there = await target.client()
        seen = [record.labels["linn.dead.offset"] for record in await dead(there)]
        await there.administer("topic.alter", name="d", settings={"bytes_max": 10_000_000})
        await until_settled(queue)
        found = [record.labels["linn.dead.offset"] for record in await dead(there)]
        assert found[: len(seen)] == seen
        assert sorted(found) == list(range(100))
