"""Backlog lines: rates of a queue with many waiting records, and the memory that its broker takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import trio

import linn
from benchmarks.line import Line, Mark, Pair, line_of_pairs
from benchmarks.load import Target
from benchmarks.matrix.point import Point, make_topics
from benchmarks.matrix.shipment import Shipment, shipment
from benchmarks.matrix.throughput import taking_floor
from benchmarks.matrix.traffic import consume, publish
from benchmarks.plan import Plan
from benchmarks.servers import broker, check_room, floor, fresh_folder, target_of

SMALL = Point(record_bytes=16, batch_bytes=1 << 20, kind="queue")
PREFETCH = 100_000
"""Two batches: the broker cuts none."""


def backlog_lines(plan: Plan) -> Iterator[Line]:
    """All lines. The backlog grows between figures, and is constant while one is measured."""
    goods = shipment(SMALL)
    with (
        fresh_folder(plan.folder) as folder,
        taking_floor(SMALL, goods.batch_bytes, folder) as taking,
        floor("consume") as sending,
        broker(folder, SMALL.config) as process,
    ):
        queue = target_of(process)
        trio.run(make_topics, queue, SMALL, False)
        sides = _Sides(plan, goods, taking, sending, queue, process.url)
        for backlog in plan.matrix.backlogs:
            check_room(plan.folder)
            sides.fill(backlog)
            yield from sides.lines(backlog)


class _Sides:
    """The floors and linn's queue, whose backlog is known."""

    def __init__(self, plan: Plan, goods: Shipment, taking: Target, sending: Target, queue: Target, url: str) -> None:
        self._plan = plan
        self._goods = goods
        self._taking, self._sending, self._queue = taking, sending, queue
        self._url = url
        self._held = 0
        self._passes = -(-plan.matrix.backlog_records // goods.records)

    def fill(self, backlog: int) -> None:
        """Publish until the queue holds so many records."""
        passes = -(-(backlog - self._held) // self._goods.records)
        trio.run(publish, self._queue, SMALL, self._goods, passes)
        self._held += passes * self._goods.records

    def lines(self, backlog: int) -> Iterator[Line]:
        """Measure three figures at one backlog; the first round is not counted."""
        rounds = [self._round() for _ in range(1 + self._plan.matrix.rounds)][1:]
        for series, pairs in zip(("publish", "consume"), zip(*rounds, strict=True), strict=True):
            line = line_of_pairs("matrix", f"Backlog {backlog:,}, {series}", None, list(pairs), "krecords/s")
            line.mark = Mark("backlog", series, float(backlog))
            yield line
        memory = Line("matrix", f"Backlog {backlog:,}, memory", "MB", None, [own_mb(self._queue.pid)])
        memory.floor, memory.linn, memory.detail_unit = own_mb(self._taking.pid), memory.value, "MB"
        memory.mark = Mark("backlog", "memory", float(backlog))
        yield memory

    def _round(self) -> tuple[Pair, Pair]:
        """Publish records, then consume as many."""
        goods, passes = self._goods, self._passes
        published = [self._rate(trio.run(publish, side, SMALL, goods, passes).seconds) for side in self._publishing]
        bare = self._rate(trio.run(consume, self._sending, SMALL, goods, passes).seconds)
        count = passes * goods.records
        worked = trio.run(work_off, self._url, count)
        return Pair(published[0], published[1]), Pair(bare, self._rate(worked))

    @property
    def _publishing(self) -> tuple[Target, Target]:
        return self._taking, self._queue

    def _rate(self, seconds: float) -> float:
        return self._passes * self._goods.records / seconds / 1e3


async def work_off(url: str, count: int) -> float:
    """Consume so many records of the queue and ack each batch; returns the seconds until the last ack is
    carried out.
    """
    left = count
    async with linn.connect(url) as client, client.consumer("t0", prefetch=PREFETCH) as consumer:
        started = time.perf_counter()
        async for batch in consumer.batches():
            left -= len(batch)
            settled = batch.ack()
            if left <= 0:
                await settled
                break
        return time.perf_counter() - started


def own_mb(pid: int) -> float:
    """The process's own memory, without pages of files shared with the page cache."""
    memory = psutil.Process(pid).memory_info()
    return float(memory.rss - memory.shared) / 1e6
