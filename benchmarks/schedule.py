"""Lines of scheduled messages: their memory, the time until a start after a kill knows them all, and how late they come
while others wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import psutil  # type: ignore[import-untyped]
import trio

import linn
from benchmarks.line import Bound, Line
from benchmarks.load import LoadFailed
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder
from linn.client import Producer
from linn.core.errors.tree import LimitExceeded

MEMORY_MB = Bound(100, at_most=True)
START_S = Bound(5, at_most=True)
LATE_MS = Bound(50, at_most=True)
PER_MS = 10
"""Messages that are due in one millisecond: 10,000 a second."""
LEAD_MS = 3_000
"""Time for publishing, before the first message is due."""
YEAR_MS = 366 * 86_400_000
CONFIG = """
[topics.later]
kind = "stream"
"""


def schedule_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    waiting, starts = plan.scheduled_records, list[float]()
    with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:
        usage = psutil.Process(process.pid).memory_info
        before = usage().rss
        trio.run(_schedule, process.url, waiting)
        yield Line("schedule", f"{waiting:,} messages wait", "MB", MEMORY_MB, [(usage().rss - before) / 1e6])
        for _ in range(plan.schedule_rounds):
            process.kill()
            process.start()
            starts.append(process.ready_s + trio.run(_until_known, process.url, waiting))
        yield Line("schedule", f"start after a kill, {waiting:,} wait", "s", START_S, starts)
        late = [trio.run(_late_ms, process.url, plan.due_ms) for _ in range(plan.schedule_rounds)]
        yield Line("schedule", "p99 of how late messages come, 10,000/s", "ms", LATE_MS, late)


async def _schedule(url: str, records: int) -> None:
    """Publish messages for times that are spread over a year, and lie a year ahead."""
    begin_ms = int(time.time() * 1000) + YEAR_MS
    async with linn.connect(url) as client, client.producer("later") as producer:
        await _publish(producer, [begin_ms + number * 7_919 % YEAR_MS for number in range(records)])


async def _publish(producer: Producer, times_ms: Sequence[int]) -> None:
    """Publish messages of 128 bytes for these times, with which their values begin."""
    for at in times_ms:
        value = (b"%d " % at).ljust(128, b"x")
        try:
            producer.publish_nowait(value, at=at)
        except LimitExceeded:
            await producer.flush()
            producer.publish_nowait(value, at=at)
    await producer.flush()


async def _until_known(url: str, records: int) -> float:
    """The seconds until the broker, which is ready, knows all messages that wait."""
    began = time.perf_counter()
    async with linn.connect(url) as client:
        while (found := await client.scheduled("later", count=1))["count"] < records or not found["first"]:
            await trio.sleep(0.01)
    return time.perf_counter() - began


async def _late_ms(url: str, due_ms: int) -> float:
    """Publish messages that are due at 10,000 a second; returns the 99th percentile of their delays in ms."""
    async with linn.connect(url) as client, client.producer("later") as producer:
        offset = await client.find_offset("later", 0, "latest")
        begin_ms = int(time.time() * 1000) + LEAD_MS
        await _publish(producer, [begin_ms + number // PER_MS for number in range(due_ms * PER_MS)])
        if begin_ms < time.time() * 1000:
            raise LoadFailed("messages were due before all were published: the machine is too slow, or too busy")
        late, left = list[int](), due_ms * PER_MS
        while left:
            fetched = await client.fetch("later", 0, offset, wait_s=10)
            offset = fetched.next_offset
            for batch in fetched.batches:
                late += [batch.records.append_time_ms - int((value or b"0").split()[0]) for value in batch.values]
                left -= len(batch)
    return float(sorted(late)[len(late) * 99 // 100])
