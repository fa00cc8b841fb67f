"""Three processes of one cluster beside a real etcd: clients consume at each of them, and a leader is killed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from cluster_processes import RealCluster, real_cluster

import linn

pytestmark = pytest.mark.system

COUNT = 300
PARTITIONS = 6
LIMIT_S = 60.0


@asynccontextmanager
async def clients_of(cluster: RealCluster) -> AsyncIterator[list[linn.Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(linn.connect(url)) for url in cluster.urls]


async def publish(clients: list[linn.Client], topic: str, count: int = COUNT) -> None:
    """Publish numbers, a part of them at each broker."""
    for number, client in enumerate(clients):
        values = [b"%d" % value for value in range(number, count, len(clients))]
        async with client.producer(topic) as producer:
            await producer.publish_many(values, keys=values)


async def consume(consumer: linn.Consumer, found: list[int], is_done: trio.Event, wanted: int = COUNT) -> None:
    """Ack what comes until so many different numbers are there."""
    async for message in consumer:
        found.append(int(message.value or b""))
        with contextlib.suppress(linn.errors.DeliveryNotCurrent):  # Its leader was killed: the record comes again.
            await message.ack()
        if len(set(found)) == wanted:
            is_done.set()


async def until_open(clients: list[linn.Client], *topics: str) -> None:
    """Wait until the leaders have opened new topics."""
    with trio.fail_after(LIMIT_S):
        for client in clients:
            for topic in topics:
                while True:
                    try:
                        await client.admin.topic(topic)
                        break
                    except linn.errors.LinnError:
                        await trio.sleep(0.05)


async def test_consumers_of_every_kind_get_everything_at_each_broker(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as cluster:
        async with clients_of(cluster) as clients, trio.open_nursery() as nursery, AsyncExitStack() as stack:
            await clients[0].admin.create_topic("q")
            await clients[1].admin.create_topic("s", kind="stream", partitions=PARTITIONS)
            await until_open(clients, "q", "s")
            queue, group = list[int](), list[int]()
            done = [trio.Event() for _ in range(5)]
            members = []
            with trio.fail_after(LIMIT_S):
                for number, client in enumerate(clients):
                    worker = await stack.enter_async_context(client.consumer("q"))
                    reader = await stack.enter_async_context(client.consumer("s"))
                    member = await stack.enter_async_context(client.consumer("s", group="g"))
                    members.append(member)
                    nursery.start_soon(consume, worker, queue, done[3])
                    nursery.start_soon(consume, reader, [], done[number])
                    nursery.start_soon(consume, member, group, done[4])
                while sorted(len(member.partitions.get("s", [])) for member in members) != [2, 2, 2]:
                    await trio.sleep(0.05)
                await publish(clients, "q")
                await publish(clients, "s")
                for event in done:
                    await event.wait()
            assert sorted(queue) == list(range(COUNT)), "each once"
            assert sorted(group) == list(range(COUNT)), "each once"
            nursery.cancel_scope.cancel()


async def test_consumers_elsewhere_go_on_when_the_leader_was_killed(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as cluster:
        async with clients_of(cluster) as clients, trio.open_nursery() as nursery, AsyncExitStack() as stack:
            await clients[0].admin.create_topic("q", replicas=1)
            await until_open(clients, "q")  # The others hear of it a moment later.
            await publish(clients, "q", 1)
            brokers = [cluster.brokers[number] for number in sorted(cluster.brokers)]
            (leader,) = [broker for broker in brokers if any(broker.data_dir.rglob("q/*/*.log"))]
            others = [client for client, broker in zip(clients, brokers, strict=True) if broker is not leader]
            found, done = list[int](), trio.Event()
            with trio.fail_after(LIMIT_S):
                for client in others:
                    worker = await stack.enter_async_context(client.consumer("q"))
                    nursery.start_soon(consume, worker, found, done)
                await publish(others, "q", COUNT // 2)
                leader.kill()
                await trio.to_thread.run_sync(leader.start)
                async with others[0].producer("q") as producer:
                    await producer.publish_many([b"%d" % value for value in range(COUNT // 2, COUNT)])
                await done.wait()
            assert set(found) == set(range(COUNT))
            nursery.cancel_scope.cancel()
