"""Lines of the blocking client: the same work as the client's, in plain threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import linn.sync
from benchmarks.client import MANY, some_values
from benchmarks.line import Bound, Line
from benchmarks.load import RECORD_BYTES
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder
from linn.core.errors.tree import LimitExceeded

Work = Callable[[linn.sync.Client, int], float]
"""A benchmark that handles so many records and returns the seconds that count."""


def blocking_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    with fresh_folder(plan.folder) as folder, broker(folder) as process:
        url = process.url
        with linn.sync.connect(url) as client:
            # More than the topic holds, so that what follows is published into memory that is in use.
            publish_many(client, 2 * (plan.turn_bytes // RECORD_BYTES))
            publish_many(client, plan.records, "memory")
        yield _line(plan, url, "publish_many", Bound(1_000_000), publish_many)
        yield _line(plan, url, "publish_nowait", Bound(300_000), publish_nowait)
        yield _line(plan, url, "consume messages, each value", Bound(300_000), consume_messages)
        yield _line(plan, url, "consume batches", None, consume_batches)
        yield _line(plan, url, "queue, each message acked", None, work_queue)


def _line(plan: Plan, url: str, name: str, bound: Bound | None, work: Work) -> Line:
    rates = []
    for _ in range(plan.rounds):
        with linn.sync.connect(url) as client:
            rates.append(plan.records / work(client, plan.records))
    return Line("blocking", name, "records/s", bound, rates)


def publish_many(client: linn.sync.Client, count: int, topic: str = "ring") -> float:
    """Publish in calls of MANY messages, each confirmed before the next."""
    values = some_values(min(count, MANY))
    with client.producer(topic) as producer:
        started = time.perf_counter()
        for first in range(0, count, len(values)):
            producer.publish_many(values[: count - first])
        return time.perf_counter() - started


def publish_nowait(client: linn.sync.Client, count: int) -> float:
    """Publish with one call per message; when the buffer is full, and at the end, everything is confirmed."""
    values = some_values(count)
    with client.producer("ring") as producer:
        started = time.perf_counter()
        for value in values:
            try:
                producer.publish_nowait(value)
            except LimitExceeded:
                producer.flush()
                producer.publish_nowait(value)
        producer.flush()
        return time.perf_counter() - started


def consume_messages(client: linn.sync.Client, count: int) -> float:
    """Consume in a loop over messages."""
    started = time.perf_counter()
    left = count
    with client.consumer("memory") as consumer:
        for message in consumer:
            assert message.value is not None
            left -= 1
            if not left:
                break
    return time.perf_counter() - started


def consume_batches(client: linn.sync.Client, count: int) -> float:
    """Consume in a loop over batches, whose CRC is checked and whose records are not looked at."""
    started = time.perf_counter()
    left = count
    with client.consumer("memory") as consumer:
        for batch in consumer.batches():
            left -= len(batch)
            if left <= 0:
                break
    return time.perf_counter() - started


def work_queue(client: linn.sync.Client, count: int) -> float:
    """Consume a queue's records, one message after another, until the last one's ack is carried out."""
    publish_many(client, count, "queue")
    started = time.perf_counter()
    left = count
    with client.consumer("queue") as consumer:
        for message in consumer:
            settled = message.ack()
            left -= 1
            if not left:
                settled.wait()
                break
    return time.perf_counter() - started
