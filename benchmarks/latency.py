"""Latency lines: one publish at a time, against an echo of as many bytes, and the disk's time where it is synced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median

import trio

import linn
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import RECORD_BYTES, echo_seconds
from benchmarks.plan import Plan
from benchmarks.servers import CONFIG, broker, floor, fresh_folder
from linn.client.client import Client
from linn.core.batch.builder import BatchColumns, build_batch
from linn.wire import messages
from linn.wire.connection import frames_of

TARGET = Bound(3, at_most=True)
SYNCED_TARGET = Bound(1, at_most=True)
SYNCS = 1.5
"""Share of the disk's time in the floor of a synced publish: linn writes more than one record."""
SYNCED_CONFIG = f"""
{CONFIG}
[storage.synced]
engine = "segmented-log"
fsync = "always"

[topics.synced]
kind = "stream"
storage = "synced"
"""
TOPICS = {"dram": "ring", "segmented-log": "log"}


def latency_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    with fresh_folder(plan.folder) as folder, floor("echo") as bare, broker(folder, SYNCED_CONFIG) as process:
        for engine, topic in TOPICS.items():
            pairs = []
            for _ in range(plan.rounds):
                echoes = trio.run(echo_seconds, bare, request_bytes(topic), plan.single_calls)
                calls = trio.run(publish_seconds, process.url, topic, plan.single_calls)
                pairs.append(Pair(median(echoes) * 1e6, median(calls) * 1e6))
            yield line_of_pairs("latency", f"one publish, p50, {engine}", TARGET, pairs, "us")
        with floor("echo", file=folder / "floor.log") as syncing:
            pairs = []
            for _ in range(plan.rounds):
                size = request_bytes("synced")
                echo, synced = (
                    median(trio.run(echo_seconds, target, size, plan.single_calls)) for target in (bare, syncing)
                )
                calls = trio.run(publish_seconds, process.url, "synced", plan.single_calls)
                pairs.append(Pair((echo + SYNCS * (synced - echo)) * 1e6, median(calls) * 1e6))
        yield line_of_pairs("latency", "one publish, p50, synced", SYNCED_TARGET, pairs, "us")


def request_bytes(topic: str) -> int:
    """The size of a publish of one record."""
    batch = build_batch(BatchColumns([bytes(RECORD_BYTES)], 1_700_000_000_000, 1))
    return sum(map(len, frames_of(messages.Publish(topic), 1, [batch])))


async def publish_seconds(url: str, topic: str, count: int, idempotent: bool = True) -> list[float]:
    """Time single publishes, one after the other, of a client of their own."""
    async with linn.connect(url) as client:
        return await timed_publishes(client, topic, count, idempotent)


async def timed_publishes(client: Client, topic: str, count: int, idempotent: bool = True) -> list[float]:
    """Time single publishes, one after the other."""
    taken: list[float] = []
    value = os.urandom(RECORD_BYTES)
    async with client.producer(topic=topic, idempotent=idempotent) as producer:
        for _ in range(count):
            started = time.perf_counter()
            await producer.publish(value)
            taken.append(time.perf_counter() - started)
    return taken
