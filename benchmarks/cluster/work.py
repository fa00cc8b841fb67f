"""The runs of the group `cluster`: one client that publishes, and for a queue consumes and acks as well.

Law: the processor time of a run includes that of the followers until they have everything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

import linn
from benchmarks.client import VALUES
from benchmarks.cluster.processes import Place
from benchmarks.load import RUN_S_MAX, LoadFailed
from linn.client.client import Client
from linn.client.produce.producer import AcksName


@dataclass(frozen=True)
class Case:
    """A topic, and a way to publish to it. `replicas` 0: at one broker without a cluster."""

    kind: str
    fsync: str
    record_bytes: int
    replicas: int
    acks: AcksName

    @property
    def topic(self) -> str:
        """The topic, which other cases use as well."""
        return f"{self.kind}-{self.fsync}-{self.replicas}"

    def __str__(self) -> str:
        size = "1 KiB" if self.record_bytes == 1024 else f"{self.record_bytes} B"
        return f"{self.kind}, {size}, {self.fsync}, {self.replicas} x, {self.acks}"


@dataclass(frozen=True)
class Turn:
    """The result of one run."""

    rate: float
    """Records per second."""
    cpu_us: dict[str, float]
    """Processor time for each record, by role."""
    single_s: Sequence[float] = ()
    """The durations of single publishes, sorted."""

    @property
    def p50_ms(self) -> float:
        """The median of single publishes."""
        return self.single_s[len(self.single_s) // 2] * 1e3

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of single publishes."""
        return self.single_s[len(self.single_s) * 99 // 100] * 1e3


def batches(case: Case, place: Place, count: int, url: str = "") -> Turn:
    """Publish so many records in batches. `url`: of another broker than the leader. Raises LoadFailed."""
    return trio.run(_limited, case, place, count, url or place.url, True)


def singles(case: Case, place: Place, count: int, url: str = "") -> Turn:
    """Publish so many records one by one, each after the answer to the one before. Raises LoadFailed."""
    return trio.run(_limited, case, place, count, url or place.url, False)


async def _limited(case: Case, place: Place, count: int, url: str, in_batches: bool) -> Turn:
    with trio.move_on_after(RUN_S_MAX):
        async with linn.connect(url) as client:
            return await _run(client, case, place, count, in_batches)
    raise LoadFailed(f"{case}: not within {RUN_S_MAX:g} s")


async def _run(client: Client, case: Case, place: Place, count: int, in_batches: bool) -> Turn:
    values = values_of(case.record_bytes, count)
    single_s: list[float] = []
    async with AsyncExitStack() as stack:
        consumed = trio.Event()
        nursery = await stack.enter_async_context(trio.open_nursery())
        if case.kind == "queue":
            nursery.start_soon(consume, client, case.topic, count, consumed)
        else:
            consumed.set()
        before, started = place.cpu_s(), time.perf_counter()
        if in_batches:
            await publish(client, case, values)
        else:
            single_s = await timed_publishes(client, case, values)
        await consumed.wait()
        seconds = time.perf_counter() - started
        if case.replicas and case.kind == "stream":
            async with client.producer(case.topic, acks="all") as producer:
                await producer.publish(b"")  # Confirmed when the followers have all that was published before.
        after = place.cpu_s()
    cpu_us = {role: (after[role] - before[role]) / count * 1e6 for role in before}
    return Turn(count / seconds, cpu_us, sorted(single_s))


def values_of(record_bytes: int, count: int) -> list[bytes]:
    """Return `count` values, of which at most VALUES are different."""
    different = [os.urandom(record_bytes) for _ in range(min(count, VALUES))]
    return (different * (count // len(different) + 1))[:count]


async def publish(client: Client, case: Case, values: list[bytes]) -> None:
    """Publish in one call, until everything is confirmed; with acks "none", until the broker has read everything."""
    async with client.producer(case.topic, acks=case.acks) as producer:
        await producer.publish_many(values)
    if case.acks == "none" and case.kind == "stream":
        async with client.producer(case.topic) as producer:
            await producer.publish(b"")


async def timed_publishes(client: Client, case: Case, values: list[bytes]) -> list[float]:
    """Publish one by one; return the duration of each."""
    taken: list[float] = []
    async with client.producer(case.topic, acks=case.acks) as producer:
        await producer.publish(values[0])
        for value in values[1:]:
            started = time.perf_counter()
            await producer.publish(value)
            taken.append(time.perf_counter() - started)
    return taken


async def consume(client: Client, topic: str, count: int, consumed: trio.Event) -> None:
    """Consume and ack so many records of a queue."""
    left = count
    async with client.consumer(topic) as consumer:
        async for batch in consumer.batches():
            left -= len(batch)
            settled = batch.ack()
            if left <= 0:
                await settled
                break
    consumed.set()
