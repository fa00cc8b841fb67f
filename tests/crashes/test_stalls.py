"""Processes that stand still (SIGSTOP): the broker, and clients that hold leases, never read, or never ack."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import trio

import linn
from linn.client.client import Client
from linn.core.errors.tree import LinnError
from linn.testing.process import BrokerProcess

LAZY_CONSUMER = Path(__file__).with_name("lazy_consumer.py")
CONFIG = """
[broker]
connection_bytes_max = "8MiB"

[listeners.native]
address = "127.0.0.1:0"
keepalive = "400ms"

[topics.jobs]
kind = "queue"
lease = "1s"
max_deliveries = 1000

[topics.patient-jobs]
kind = "queue"
lease = "1h"

[topics.events]
kind = "stream"
"""
STALL_S = 2.0
"""Longer than a lease and than three keepalives."""
WITHIN_S = 200.0


def running(folder: Path) -> BrokerProcess:
    return BrokerProcess(folder, CONFIG, listen=())


@contextlib.contextmanager
def lazy_consumer(url: str, topic: str, *, prefetch: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """A consumer in a process of its own, which has taken `count` messages."""
    command = [sys.executable, str(LAZY_CONSUMER), url, topic, str(prefetch), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await trio.to_thread.run_sync(process.stdout.readline)).strip()


async def publish(client: Client, topic: str, count: int, size_bytes: int = 100) -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many([bytes(size_bytes)] * count)


async def settle_all(client: Client, topic: str, count: int) -> dict[int, int]:
    """Ack until every one of `count` records is settled; the highest attempt by offset."""
    attempts: dict[int, int] = {}
    async with client.consumer(topic) as consumer:
        while len(attempts) < count:
            with contextlib.suppress(LinnError):
                message = await anext(consumer)
                await message.ack()
                attempts[message.offset] = message.attempt
    return attempts


async def test_a_broker_suspended_longer_than_leases_and_keepalives_continues(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with linn.connect(broker.url, request_timeout_s=60, retries_max=100) as client:
            await publish(client, "jobs", 100)
            async with client.consumer("jobs", prefetch=10) as consumer:
                held = await anext(consumer)
                broker.signal(signal.SIGSTOP)
                confirmed = trio.Event()
                async with trio.open_nursery() as nursery:

                    async def publish_meanwhile() -> None:
                        await publish(client, "events", 100)
                        confirmed.set()

                    nursery.start_soon(publish_meanwhile)
                    await trio.sleep(STALL_S)
                    assert not confirmed.is_set()
                    broker.signal(signal.SIGCONT)
                    with trio.fail_after(WITHIN_S):
                        await confirmed.wait()
            with trio.fail_after(WITHIN_S):
                attempts = await settle_all(client, "jobs", 100)
            assert attempts[held.offset] > 1, "its lease ran out"
            (partition,) = (await client.admin.topic("events"))["partitions"]
            assert partition["end"] >= 100
        assert "Traceback" not in broker.log_text()


async def test_the_leases_of_a_frozen_consumer_expire(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with linn.connect(broker.url) as client:
            for topic in ("jobs", "patient-jobs"):
                await publish(client, topic, 100)
                with lazy_consumer(broker.url, topic, prefetch=100, count=5) as lazy:
                    assert await first_line(lazy) == "0 1 2 3 4"
                    lazy.send_signal(signal.SIGSTOP)
                    # By the lease's end, or because a peer that says nothing is taken for gone.
                    with trio.fail_after(WITHIN_S):
                        attempts = await settle_all(client, topic, 100)
                    assert min(attempts.values()) > 1
                    lazy.send_signal(signal.SIGCONT)
                    assert lazy.stdin is not None
                    lazy.stdin.write("ack\n")
                    lazy.stdin.flush()
                    assert await first_line(lazy) == "delivery.not_current"


async def test_a_client_that_never_reads_costs_bounded_memory_and_harms_no_other(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        memory = psutil.Process(broker.pid).memory_info
        async with linn.connect(broker.url) as client:
            await publish(client, "events", 1)
            with lazy_consumer(broker.url, "events", prefetch=1_000_000, count=1) as lazy:
                await first_line(lazy)
                before = memory().rss
                lazy.send_signal(signal.SIGSTOP)
                async with client.consumer("events", prefetch=1000) as reader:
                    for _ in range(10):
                        await publish(client, "events", 100, 100_000)
                    seen = 0
                    with trio.fail_after(WITHIN_S):
                        while seen < 1001:
                            seen += len(await reader.next_batch())
                assert memory().rss - before < 64 << 20


async def test_a_client_that_never_acks_costs_bounded_memory_and_its_leases_end(tmp_path: Path) -> None:
    count = 200_000
    with running(tmp_path) as broker:
        memory = psutil.Process(broker.pid).memory_info
        async with linn.connect(broker.url) as client:
            await publish(client, "jobs", count, 10)
            before = memory().rss
            with lazy_consumer(broker.url, "jobs", prefetch=count, count=count) as lazy:
                await first_line(lazy)
                await publish(client, "patient-jobs", 1000)
                assert len(await settle_all(client, "patient-jobs", 1000)) == 1000
                async with client.consumer("jobs", prefetch=count) as consumer:
                    with trio.fail_after(WITHIN_S):
                        batch = await consumer.next_batch()
                    assert next(iter(batch)).attempt > 1
                assert memory().rss - before < 64 << 20
