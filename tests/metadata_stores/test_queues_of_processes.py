"""Queues of three processes beside a real etcd, while brokers are killed: times to live, limits, the single active
consumer, and queues that end with the broker that holds them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from cluster_processes import SLACK_S, TIMEOUT_S, RealCluster, real_cluster, until

import linn
import linn.sync

pytestmark = pytest.mark.system

COUNT = 200
TTL_S = 4.0
LIMIT = 100
LIMIT_S = 90.0


def drained(url: str, topic: str) -> list[linn.sync.Message]:
    """All records of a queue, acked."""
    found: list[linn.sync.Message] = []
    with linn.sync.connect(url) as client, client.consumer(topic, mode="pull") as consumer:
        while batches := consumer.pull(1000, wait_s=1.0):
            for batch in batches:
                found += batch
                batch.ack()
    return found


def test_records_expire_once_and_with_a_dead_letter_though_their_leader_was_killed(tmp_path: Path) -> None:
    tables = f'[topics.jobs]\nttl = "{TTL_S:g}s"\ndead_letter = "dead"\n[topics.dead]\n'
    with real_cluster(tmp_path, tables=tables) as cluster:
        cluster.until_whole("jobs", "dead")
        lost = cluster.leader("jobs")
        (url, *_) = cluster.urls_without(lost)
        seen_by = next(number for number in cluster.brokers if number != lost)
        with linn.sync.connect(url) as client, client.producer("jobs", acks="all") as producer:
            producer.publish_many([b"%d" % number for number in range(COUNT)])
        cluster.lose(lost)
        until(lambda: cluster.unsettled("dead", seen_by) == COUNT, TTL_S + TIMEOUT_S + SLACK_S)
        cluster.recover(lost)
        cluster.until_whole("jobs", "dead")
        time.sleep(2.0)
        assert cluster.unsettled("jobs", seen_by) == 0
        dead = drained(url, "dead")
        assert sorted(int(message.value or b"") for message in dead) == list(range(COUNT)), "each once"
        assert {message.labels["linn.dead.reason"] for message in dead} == {"expired"}


def test_a_limit_holds_over_a_killed_leader_and_what_is_left_is_the_newest(tmp_path: Path) -> None:
    tables = f'[topics.readings]\nrecords_max = {LIMIT}\noverflow = "drop-head"\n'
    with real_cluster(tmp_path, tables=tables) as cluster:
        cluster.until_whole("readings")
        lost = cluster.leader("readings")
        (url, *_) = cluster.urls_without(lost)
        with linn.sync.connect(url) as client, client.producer("readings", acks="all") as producer:
            for number in range(5 * LIMIT):
                if number == 2 * LIMIT:
                    cluster.lose(lost)
                producer.publish(b"%d" % number, timeout_s=60)
        left = [int(message.value or b"") for message in drained(url, "readings")]
        assert left == list(range(5 * LIMIT - len(left), 5 * LIMIT))
        assert LIMIT - LIMIT // 16 - 1 <= len(left) <= LIMIT


async def test_the_single_active_consumer_goes_on_at_the_next_leader(tmp_path: Path) -> None:
    with single(tmp_path) as cluster:
        leader = cluster.leader("jobs")
        doors = [number for number in cluster.brokers if number != leader]
        found: dict[int, list[int]] = {door: [] for door in doors}
        async with trio.open_nursery() as nursery:
            with trio.fail_after(LIMIT_S):
                for count, door in enumerate(doors, 1):
                    nursery.start_soon(work, cluster.brokers[door].url, found[door])
                    await until_active(cluster, leader, count)
                url = cluster.brokers[doors[1]].url
                async with linn.connect(url) as client, client.producer("jobs", acks="all") as producer:
                    await producer.publish_many([b"%d" % number for number in range(COUNT)])
                    while len(found[doors[0]]) < COUNT // 2:
                        await trio.sleep(0.02)
                    assert found[doors[1]] == [], "one is active"
                    cluster.lose(leader)
                    await producer.publish_many([b"%d" % number for number in range(COUNT, 2 * COUNT)])
                    while {*found[doors[0]], *found[doors[1]]} != set(range(2 * COUNT)):
                        await trio.sleep(0.05)
                await until_active(cluster, doors[1], 2)
            nursery.cancel_scope.cancel()


async def test_a_consumer_at_another_broker_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    with single(tmp_path) as cluster:
        leader = cluster.leader("jobs")
        first, second = (cluster.brokers[number].url for number in cluster.brokers if number != leader)
        command = [sys.executable, "-m", "linn", "consume", "jobs", "--url", first]
        async with trio.open_nursery() as nursery:
            with (tmp_path / "first").open("wb") as output, trio.fail_after(LIMIT_S):
                process = await trio.to_thread.run_sync(lambda: subprocess.Popen(command, stdout=output))
                try:
                    await until_active(cluster, leader, 1)
                    found = list[int]()
                    nursery.start_soon(work, second, found)
                    await until_active(cluster, leader, 2)
                    async with linn.connect(second) as client, client.producer("jobs", acks="all") as producer:
                        await producer.publish_many([b"%d" % number for number in range(COUNT)])
                        while b"%d\n" % (COUNT // 2) not in (tmp_path / "first").read_bytes():
                            await trio.sleep(0.02)
                        assert found == [], "one is active"
                        process.kill()
                        await producer.publish_many([b"%d" % number for number in range(COUNT, 2 * COUNT)])
                        while not found or max(found) < 2 * COUNT - 1:
                            await trio.sleep(0.05)
                finally:
                    process.kill()
                    process.wait()
                taken = [int(line) for line in (tmp_path / "first").read_bytes().split()]
                assert {*taken, *found} == set(range(2 * COUNT))
            nursery.cancel_scope.cancel()


@contextlib.contextmanager
def single(folder: Path) -> Iterator[RealCluster]:
    """A cluster with a queue that has one active consumer."""
    with real_cluster(folder, tables='[topics.jobs]\nconsumers = "one"\nlease = "5s"\n') as cluster:
        cluster.until_whole("jobs")
        yield cluster


async def work(url: str, found: list[int]) -> None:
    """Consume the queue, and ack each record."""
    async with linn.connect(url) as client, client.consumer("jobs", prefetch=5) as worker:
        async for message in worker:
            found.append(int(message.value or b""))
            with contextlib.suppress(linn.errors.LinnError):  # Its leader was killed: the record comes again.
                await message.ack()


async def until_active(cluster: RealCluster, seen_by: int, count: int) -> None:
    """Wait until the queue has so many consumers, one of them active."""
    async with linn.connect(cluster.brokers[seen_by].url) as client:
        while True:
            shown = (await client.admin.perform("subscription.show", topic="jobs"))["by_consumer"]
            if len(shown) == count and sum(it["active"] for it in shown) == 1:
                return
            await trio.sleep(0.05)


def publish(client: linn.sync.Client, value: bytes) -> None:
    with client.producer("replies") as producer:
        producer.publish(value)


def test_a_queue_ends_with_the_broker_that_holds_it(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as cluster:
        cluster.until_joined()
        with linn.sync.connect(cluster.brokers[1].url) as owner:
            owner.admin.create_topic("replies", lifetime="broker")
            owner.admin.create_topic("mine", lifetime="connection")
        url = cluster.brokers[2].url
        with linn.sync.connect(url) as client:
            until(lambda: [it["name"] for it in client.admin.topics()] == ["replies"])
            publish(client, b"a")
            assert [message.value for message in drained(cluster.brokers[3].url, "replies")] == [b"a"]
            cluster.lose(1)
            until(lambda: client.admin.topics() == [], TIMEOUT_S + SLACK_S)
            assert client.admin.create_topic("replies", lifetime="broker")
            publish(client, b"b")
            cluster.recover(1)
            cluster.until_joined()
            assert [message.value for message in drained(cluster.brokers[1].url, "replies")] == [b"b"]
