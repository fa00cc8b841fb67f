"""Replicated topics at brokers that fail: a stream and a queue, random publishes and acks, one seed.

At the end, without faults: every record that was confirmed by all replicas is there once, in the order of its producer;
the queue has delivered it or still does, and none again whose ack was confirmed; the replicas agree; and all goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from replicas_seen import ALL, agree, content, in_sync, replica_at
from simulated_time import simulated

from linn.core.errors.tree import ConnectFailed, ConnectionLost
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

QUIET_S = 180.0
FAULTS = 10
SESSION_S = 6.0
GONE = (EOFError, ConnectFailed, ConnectionLost, trio.TooSlowError)
SYNCED = '[storage.segmented-log]\nfsync = "always"\n'


class Worker:
    """A client that goes on at another broker after each failure."""

    def __init__(self, world: BrokerWorld, brokers: list[SimBroker], rng: random.Random) -> None:
        self.world = world
        self.brokers = brokers
        self.rng = rng
        self.is_over = False
        self.refused: dict[str, int] = {}

    async def client(self) -> RawClient:
        return RawClient(await self.world.env.net.connect(self.rng.choice(self.brokers).address))

    async def run(self) -> None:
        while not self.is_over:
            try:
                with trio.fail_after(20):
                    await self.work(await self.client())
            except Refused as refused:
                self.refused[refused.code] = self.refused.get(refused.code, 0) + 1
            except GONE:
                pass
            await trio.sleep(self.rng.uniform(0, 0.3))

    async def work(self, client: RawClient) -> None:
        raise NotImplementedError


class Producer(Worker):
    """Publishes numbered records, each again until it is confirmed by all replicas."""

    topic = ""
    id = key = number = 0

    async def work(self, client: RawClient) -> None:
        await client.greet("producer", self.id, self.key)
        if not self.id:
            self.id, self.key = client.welcome.producer_id, client.welcome.producer_key
        while not self.is_over:
            batch = records([str(self.number)])
            batch.number(self.id, 0, self.number, 0)
            await client.call(m.Publish(self.topic, acks=ALL), [batch])
            self.number += 1
            await trio.sleep(self.rng.uniform(0, 0.4))


class Consumer(Worker):
    """Takes records of the queue from its leader, and acks most of them."""

    acked: set[str]
    """Values whose ack was confirmed."""
    maybe: set[str]
    """Values whose ack was sent."""

    async def work(self, client: RawClient) -> None:
        await client.greet("consumer")
        subscription = (await client.call(m.Subscribe("queue"))).subscription
        while not self.is_over:
            event = await client.pull(subscription, self.rng.randint(1, 3), wait_max_ms=300)
            found = values(event.batches)
            again = self.acked.intersection(found)
            assert not again, f"{again} was delivered after its ack was confirmed"
            if found and self.rng.random() < 0.8:
                self.maybe.update(found)
                if not await client.settle(subscription, event):
                    self.acked.update(found)
            await trio.sleep(self.rng.uniform(0, 0.4))


def do_nothing() -> None:
    """Mend nothing."""


async def trouble(world: BrokerWorld, brokers: list[SimBroker], rng: random.Random, *, is_synced: bool) -> None:
    """Faults at random times, each mended after a while."""
    net = world.env.world
    for _ in range(FAULTS):
        await trio.sleep(rng.uniform(0, 6))
        broker, other = rng.sample(brokers, 2)
        node = broker.env.name
        mend: Callable[[], None] = do_nothing
        match rng.randrange(11):
            case 0:
                world.store.stop()
                mend = world.store.start
            case 1:
                world.store.cut(node, requests=rng.random() < 0.5, answers=True)
                mend = partial(world.store.heal, node)
            case 2:
                world.store.end_all_leases()
            case 3:
                world.store.slow_watches(node, (0.0, 5.0))
                mend = partial(world.store.slow_watches, node, (0.0, 0.01))
            case 4:
                world.store.end_leases(node)
            case 5 | 6:
                broker.env.kill()
                await broker.ended()
            case 7:
                await broker.stop()
            case 8:
                net.cut(node, other.env.name)
                mend = partial(net.heal, node, other.env.name)
            case 9:
                net.cut_one_way(node, other.env.name)
                mend = partial(net.heal, node, other.env.name)
            case 10 if is_synced:
                broker.env.crash()
                await broker.ended()
        await trio.sleep(rng.uniform(0, 10))
        mend()
        if broker.has_ended:
            await broker.start()


def is_whole(brokers: list[SimBroker], topic: str) -> bool:
    return all(len(in_sync(it, topic)) == len(brokers) for it in brokers) and agree(brokers, topic)


@pytest.mark.parametrize("seed", range(20))
@simulated
async def test_what_was_confirmed_outlives_faults_of_brokers_and_of_links(env: SimEnv, seed: int) -> None:
    rng = random.Random(f"replication {seed}")
    is_synced = rng.random() < 0.5
    async with broker_world(env, seed) as world:
        brokers = await world.brokers(3, SYNCED if is_synced else "")
        admin = await brokers[0].client()
        for name in ("stream", "queue"):
            await admin.administer("topic.create", name=name, settings={"kind": name, "replicas": 3})
        workers: list[Worker] = []
        producers = {name: Producer(world, brokers, rng) for name in ("stream", "queue")}
        for name, producer in producers.items():
            producer.topic = name
        consumers = [Consumer(world, brokers, rng) for _ in range(2)]
        acked, maybe = set[str](), set[str]()
        for consumer in consumers:
            consumer.acked, consumer.maybe = acked, maybe
        workers += [*producers.values(), *consumers]
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(worker.run)
            await trouble(world, brokers, rng, is_synced=is_synced)
            for worker in workers:
                worker.is_over = True
        await trio.sleep(2 * SESSION_S)  # The last fault may yet cost a node its session.
        await until(lambda: all(is_whole(brokers, name) for name in producers), QUIET_S)
        leaders = await until_led(brokers, *producers)
        for name, leader in leaders.items():
            await check_copies(brokers, leader, name)
        client = await leaders["stream"].client()
        await check_stream(client, producers["stream"].number)
        taken = await (await leaders["queue"].client()).taken("queue", count=1 << 20)
        check_queue(taken, acked, maybe, producers["queue"].number)


async def check_copies(brokers: list[SimBroker], leader: SimBroker, name: str) -> None:
    replica = replica_at(leader, name)
    assert replica is not None
    for number in replica.logs:
        copies = [await content(it, name, number) for it in brokers]
        first = max(min(copy, default=0) for copy in copies)
        shared = [{offset: batch for offset, batch in copy.items() if offset >= first} for copy in copies]
        assert shared[1:] == shared[:-1], f"the replicas of log {number} of {name} differ"


async def check_stream(client: RawClient, confirmed: int) -> None:
    found, offset = list[str](), 0
    while more := await client.fetch("stream", offset=offset):
        found += more
        offset += len(more)
    # The last batch may have been stored without its producer having been told so.
    assert found[:confirmed] == [str(number) for number in range(confirmed)], "the stream lacks a confirmed record"
    assert len(found) <= confirmed + 1


def check_queue(taken: list[str], acked: set[str], maybe: set[str], confirmed: int) -> None:
    assert len(set(taken)) == len(taken), "a record was stored twice"
    assert not acked.intersection(taken), "a record came again after its ack was confirmed"
    missing = {str(number) for number in range(confirmed)} - acked - maybe - set(taken)
    assert not missing, f"the queue lacks confirmed records {missing}"
