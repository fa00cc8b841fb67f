"""Exactly once over three brokers of real processes, each of which is killed in turn, beside a real etcd."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from cluster_processes import RealCluster, real_cluster

import linn
from linn.client import Client, Message, Output
from linn.participants import SqliteParticipant
from linn.verbs import TRANSACTIONS_TOPIC

pytestmark = pytest.mark.system

COUNT = 600
LIMIT_S = 150.0
TABLES = """
[topics.orders]
kind = "queue"
[topics.clicks]
kind = "stream"
partitions = 2
[topics.bills]
kind = "stream"
[topics.payments]
kind = "queue"
delivery = "exactly-once"
lease = "2s"
"""
TOPICS = "orders", "clicks", "bills", "payments"


def url_of(cluster: RealCluster) -> str:
    return "linn://" + ",".join(broker.address for broker in cluster.brokers.values())


def made(message: Message) -> list[Output]:
    """A bill and a payment of an order or a click."""
    value = f"{message.topic} {message.text}".encode()
    return [Output(value, topic="bills"), Output(value, topic="payments")]


def make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS effects (record TEXT NOT NULL)")


class World:
    """Programs that read, process and write, and the file in which payments have their effects."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.cluster = cluster
        self.url = url_of(cluster)
        self.database = str(folder / "effects.db")

    async def publish(self, topic: str) -> None:
        async with linn.connect(self.url, request_timeout_s=120) as client, client.producer(topic) as producer:
            for number in range(COUNT // 10):
                some = [b"%d" % record for record in range(10 * number, 10 * number + 10)]
                await producer.publish_many(some)
                await trio.sleep(0.1)

    async def process(self, source: str, group: str | None) -> None:
        async with linn.connect(self.url, request_timeout_s=30) as client:
            await client.process(source, made, name=f"clerk of {source}", group=group, sink="bills", prefetch=20)

    async def book(self) -> None:
        participant = SqliteParticipant(self.database, prepare_connection=make_table)
        while True:
            try:
                async with linn.connect(self.url, request_timeout_s=10) as client:
                    async with client.consumer(
                        "payments", name="books", prefetch=20, exactly_once=participant
                    ) as books:
                        async for message, db in books:
                            db.execute("INSERT INTO effects VALUES (?)", (message.text,))
            except* linn.errors.LinnError:
                await trio.sleep(0.1)

    def effects(self) -> list[str]:
        """The payments that are booked."""
        with closing(sqlite3.connect(self.database)) as connection:
            make_table(connection)
            return [record for (record,) in connection.execute("SELECT record FROM effects")]


async def bills(client: Client) -> list[str]:
    """Read the committed bills."""
    found, offset = list[str](), 0
    while True:
        fetched = await client.fetch("bills", 0, offset)
        found += [(value or b"").decode() for batch in fetched.batches for value in batch.values]
        if fetched.next_offset <= offset:
            return found
        offset = fetched.next_offset


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=lambda how: how.name)
async def test_each_order_and_click_has_its_effects_once_while_each_broker_goes_in_turn(
    tmp_path: Path, how: signal.Signals
) -> None:
    wanted = sorted(f"{topic} {record}" for topic in ("orders", "clicks") for record in range(COUNT))
    with real_cluster(tmp_path, tables=TABLES) as cluster:
        await trio.to_thread.run_sync(lambda: cluster.until_whole(*TOPICS))
        world = World(cluster, tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.process, "orders", None)
            nursery.start_soon(world.process, "clicks", "clerks")
            nursery.start_soon(world.book)
            for topic in ("orders", "clicks"):
                nursery.start_soon(world.publish, topic)
            for number in (1, 2, 3):
                await trio.sleep(1.5)
                cluster.lose(number, how)
                await trio.sleep(4)
                await trio.to_thread.run_sync(cluster.recover, number)
                topics = *TOPICS, TRANSACTIONS_TOPIC
                await trio.to_thread.run_sync(lambda topics=topics: cluster.until_whole(*topics))
            with trio.fail_after(LIMIT_S):
                async with linn.connect(world.url, request_timeout_s=30) as client:
                    while len(set(await bills(client))) < len(wanted) or len(set(world.effects())) < len(wanted):
                        await trio.sleep(0.2)
                    await trio.sleep(1)
                    assert sorted(await bills(client)) == wanted, "each has one bill"
            assert sorted(world.effects()) == wanted, "each has one payment"
            nursery.cancel_scope.cancel()
