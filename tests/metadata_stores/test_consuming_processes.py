"""Three processes of one cluster beside a real etcd: clients consume at each of them, and a leader is killed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from etcd_process import running_etcd

import linn
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

COUNT = 300
PARTITIONS = 6
LIMIT_S = 60.0


def config(folder: Path, etcd: str, number: int) -> str:
    return f"""
[listeners.native]
address = "127.0.0.1:0"
[listeners.peers]
protocol = "peers"
address = "127.0.0.1:0"
[cluster]
name = "test"
node = {number}
store = "etcd"
endpoints = ["{etcd}"]
session_timeout = "3s"
listener = "peers"
secret = {{ file = "{folder}/secret" }}
"""


@contextmanager
def three_processes(folder: Path) -> Iterator[list[BrokerProcess]]:
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("5f" * 32)
    with running_etcd(folder / "etcd") as etcd, ExitStack() as stack:
        processes = []
        for number in (1, 2, 3):
            (folder / f"{number}").mkdir()
            text = config(folder, etcd.urls[0], number)
            processes.append(stack.enter_context(BrokerProcess(folder / f"{number}", text)))
        yield processes


@asynccontextmanager
async def clients_of(processes: list[BrokerProcess]) -> AsyncIterator[list[linn.Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(linn.connect(process.url)) for process in processes]


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
    with three_processes(tmp_path) as processes:
        async with clients_of(processes) as clients, trio.open_nursery() as nursery, AsyncExitStack() as stack:
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
    with three_processes(tmp_path) as processes:
        async with clients_of(processes) as clients, trio.open_nursery() as nursery, AsyncExitStack() as stack:
            await clients[0].admin.create_topic("q", replicas=1)
            await publish(clients, "q", 1)
            (leader,) = [process for process in processes if any(process.data_dir.rglob("q/*/*.log"))]
            others = [client for client, process in zip(clients, processes, strict=True) if process is not leader]
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
