"""Client lines: what one client process publishes and consumes, with the options that users get."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator

import trio

import linn
from benchmarks.line import Bound, Line
from benchmarks.load import RECORD_BYTES
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder
from linn.client.client import Client
from linn.core.errors.tree import LimitExceeded

MANY = 100_000
"""Messages of one publish_many."""
VALUES = 10_000
"""Number of distinct values."""

Work = Callable[[Client, int], Awaitable[float]]
"""A benchmark that handles so many records and returns the seconds that count."""


def client_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    with fresh_folder(plan.folder) as folder, broker(folder) as process:
        url = process.url
        # More than the topic holds, so that what follows is published into memory that is in use.
        trio.run(_run, url, publish_many, 2 * (plan.turn_bytes // RECORD_BYTES))
        yield _line(plan, url, "publish_many", Bound(4_000_000), publish_many)
        yield _line(plan, url, "publish_nowait", Bound(500_000), publish_nowait)
        trio.run(_run, url, fill, plan.records)
        yield _line(plan, url, "consume messages, each value", Bound(500_000), consume_messages)
        yield _line(plan, url, "consume batches", Bound(4_000_000), consume_batches)
        yield _line(plan, url, "consume batches, all values", None, consume_values)
        yield _line(plan, url, "queue: publish, deliver, ack", None, through_queue)


def _line(plan: Plan, url: str, name: str, bound: Bound | None, work: Work) -> Line:
    rates = [plan.records / trio.run(_run, url, work, plan.records) for _ in range(plan.rounds)]
    return Line("client", name, "records/s", bound, rates)


async def _run(url: str, work: Work, count: int) -> float:
    async with linn.connect(url) as client:
        return await work(client, count)


def some_values(count: int) -> list[bytes]:
    """Return `count` values, of which at most VALUES are different."""
    different = [os.urandom(RECORD_BYTES) for _ in range(min(count, VALUES))]
    return (different * (count // len(different) + 1))[:count]


async def publish_many(client: Client, count: int, topic: str = "ring", idempotent: bool = True) -> float:
    """Publish in calls of MANY messages, each confirmed before the next."""
    values = some_values(min(count, MANY))
    async with client.producer(topic=topic, idempotent=idempotent) as producer:
        started = time.perf_counter()
        for first in range(0, count, len(values)):
            await producer.publish_many(values[: count - first])
        return time.perf_counter() - started


async def fill(client: Client, count: int) -> float:
    """Publish the records to consume."""
    return await publish_many(client, count, "memory")


async def publish_nowait(client: Client, count: int, idempotent: bool = True) -> float:
    """Publish with one call per message; when the buffer is full, and at the end, everything is confirmed."""
    values = some_values(count)
    async with client.producer(topic="ring", idempotent=idempotent) as producer:
        started = time.perf_counter()
        for value in values:
            try:
                producer.publish_nowait(value)
            except LimitExceeded:
                await producer.flush()
                producer.publish_nowait(value)
        await producer.flush()
        return time.perf_counter() - started


async def consume_messages(client: Client, count: int) -> float:
    """Consume in a loop over messages."""
    started = time.perf_counter()
    left = count
    async with client.consumer("memory") as consumer:
        async for message in consumer:
            assert message.value is not None
            left -= 1
            if not left:
                break
    return time.perf_counter() - started


async def consume_batches(client: Client, count: int, topic: str = "memory") -> float:
    """Consume in a loop over batches, whose CRC is checked and whose records are not looked at."""
    started = time.perf_counter()
    left = count
    async with client.consumer(topic) as consumer:
        async for batch in consumer.batches():
            left -= len(batch)
            if left <= 0:
                break
    return time.perf_counter() - started


async def consume_values(client: Client, count: int) -> float:
    """Consume in a loop over batches, with all their values as bytes."""
    started = time.perf_counter()
    left = count
    async with client.consumer("memory") as consumer:
        async for batch in consumer.batches():
            left -= len(batch.values)
            if left <= 0:
                break
    return time.perf_counter() - started


async def through_queue(client: Client, count: int) -> float:
    """Run one producer and one consumer at the same time, until the last record is acked."""

    async def produce() -> None:
        await publish_many(client, count, "queue")

    started = time.perf_counter()
    left = count
    async with client.consumer("queue") as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        async for batch in consumer.batches():
            left -= len(batch)
            settled = batch.ack()
            if left <= 0:
                await settled
                break
    return time.perf_counter() - started
