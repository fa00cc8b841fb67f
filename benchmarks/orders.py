"""Lines of orders: the rate of a queue with an order as a share of that of a queue without one, which get the same
records; the time that jobs take beside another tenant's flood; and the memory that a broker takes for the records
that wait in either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import trio

import linn
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import cpu_s
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder
from linn.client.client import Client
from linn.core.errors.tree import LimitExceeded

BATCH_ACKS = Bound(0.2)
SINGLE_ACKS = Bound(0.7)
BESIDE_A_FLOOD = Bound(3, at_most=True)
WAITING_MB = {"fifo": Bound(300, at_most=True), "key": Bound(400, at_most=True)}
VALUE = b"x" * 128
KEYS = [b"key %d" % number for number in range(1_000)]
TENANTS = [f"tenant {number}" for number in range(100)]
JOB_EVERY_S = 0.01
JOB_S = 0.02
WORKERS = 8
CONFIG = """
[topics.fifo]
[topics.priority]
order = "priority"
[topics.fair]
order = "fair"
order_by = "label.tenant"
[topics.key]
order = "key"
"""


def order_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:

        def run(topic: str, order: str, is_single: bool) -> tuple[float, float]:
            records = plan.ordered_single_records if is_single else plan.ordered_records
            before = cpu_s(process.pid)
            rate = records / trio.run(_through, process.url, topic, order, records, is_single)
            return rate, (cpu_s(process.pid) - before) / records * 1e6

        run("fifo", "fair", False)
        for order in ("priority", "fair", "key"):
            for is_single, bound in ((False, BATCH_ACKS), (True, SINGLE_ACKS)):
                pairs = []
                for number in range(plan.order_rounds):
                    topics = ("fifo", order) if number % 2 else (order, "fifo")
                    found = {topic: run(topic, order, is_single) for topic in topics}
                    (plain, plain_us), (ordered, ordered_us) = found["fifo"], found[order]
                    pairs.append(Pair(plain, ordered, plain_us, ordered_us))
                name = f"{order}, {'single' if is_single else 'batch'} acks"
                yield line_of_pairs("orders", name, bound, pairs, "1/s")
    pairs = []
    for _ in range(plan.order_rounds):
        with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:
            alone = trio.run(_wait_s, process.url, plan.fair_jobs)
            trio.run(_flood, process.url, plan.flood_records)
            pairs.append(Pair(alone * 1e3, trio.run(_wait_s, process.url, plan.fair_jobs) * 1e3))
    yield line_of_pairs("orders", "fair, p99 of others' jobs beside a flood", BESIDE_A_FLOOD, pairs, "ms")
    for topic in WAITING_MB:  # The index by key is the largest.
        with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:
            usage = psutil.Process(process.pid).memory_info
            before = usage().rss
            trio.run(_fill, process.url, topic, plan.waiting_records)
            name = f"{topic}, {plan.waiting_records:,} records wait"
            yield Line("orders", name, "MB", WAITING_MB[topic], [(usage().rss - before) / 1e6])


async def _flood(url: str, records: int) -> None:
    """Publish jobs of one tenant at once."""
    async with linn.connect(url) as client, client.producer("fair") as producer:
        for begin in range(0, records, 10_000):
            await producer.publish_many([VALUE] * min(10_000, records - begin), labels={"tenant": "flood"})


async def _wait_s(url: str, jobs: int) -> float:
    """Publish jobs of 99 tenants, one every JOB_EVERY_S, and have WORKERS do them; returns the 99th percentile of the
    time from a publish to the end of its job, which takes JOB_S.
    """
    begun: dict[bytes, float] = {}
    waits: list[float] = []

    async def publish() -> None:
        async with client.producer("fair", linger_ms=0) as producer:
            for number in range(jobs):
                value = b"%d" % number
                begun[value] = time.perf_counter()
                await producer.publish(value, labels={"tenant": TENANTS[number % 99]})
                await trio.sleep(JOB_EVERY_S)

    async def work() -> None:
        async with client.consumer("fair", prefetch=1) as consumer:
            async for message in consumer:
                await trio.sleep(JOB_S)
                message.ack()
                if (since := begun.get(message.value or b"")) is not None:
                    waits.append(time.perf_counter() - since)
                if len(waits) == jobs:
                    nursery.cancel_scope.cancel()

    async with linn.connect(url) as client, trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(work)
        await publish()
    return sorted(waits)[len(waits) * 99 // 100]


async def _fill(url: str, topic: str, records: int) -> None:
    """Publish records, and consume one delivery of them, so that they are in the index of an order."""
    async with linn.connect(url) as client:
        await _publish(client, topic, topic, records)
        async with client.consumer(topic) as consumer:
            (await consumer.next_batch()).ack()


async def _through(url: str, topic: str, order: str, records: int, is_single: bool) -> float:
    """Publish records, then consume and ack them; returns the seconds for all of it."""
    async with linn.connect(url) as client:
        began = time.perf_counter()
        await _publish(client, topic, order, records)
        async with client.consumer(topic) as consumer:
            left = records
            while left:
                batch = await consumer.next_batch()
                left -= len(batch)
                if is_single:
                    for message in batch:
                        message.ack()
                else:
                    batch.ack()
        return time.perf_counter() - began


async def _publish(client: Client, topic: str, order: str, records: int) -> None:
    """Publish records with keys, or with labels for `fair`, one priority or tenant or key after the other."""
    async with client.producer(topic) as producer:
        for number in range(records):
            one = number * 7 % 1_000
            given: dict[str, Any] = (
                {"labels": {"tenant": TENANTS[one % 100]}} if order == "fair" else {"key": KEYS[one]}
            )
            if topic == "priority":
                given["priority"] = one % 10
            try:
                producer.publish_nowait(VALUE, **given)
            except LimitExceeded:
                await producer.flush()
                producer.publish_nowait(VALUE, **given)
        await producer.flush()
