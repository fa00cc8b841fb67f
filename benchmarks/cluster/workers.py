"""Lines of workers: two topics at two workers, whose clients are connected to the worker that leads their topic, beside
the same at one broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

import psutil  # type: ignore[import-untyped]
import trio

import linn
from benchmarks.cluster.processes import READY_S_MAX, STORAGE
from benchmarks.cluster.work import values_of
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import LoadFailed, cpu_s
from benchmarks.plan import Plan
from benchmarks.servers import fresh_folder
from linn.client.client import Client
from linn.testing.process import BrokerProcess

CPU = Bound(1.15, at_most=True)
COUNT = 2
RECORD_BYTES = 128
KEPT_BYTES = 64 << 20
CONNECTIONS_MAX = 200
"""Connections after which a worker that was never met is given up."""


def worker_lines(plan: Plan) -> Iterator[Line]:
    """Both lines."""
    count = min(plan.cluster.run_bytes // RECORD_BYTES, plan.cluster.run_records)
    with fresh_folder(plan.folder) as folder:
        places = [folder / "one", folder / "two"]
        for place in places:
            place.mkdir()
        options = ("--workers", str(COUNT))
        with BrokerProcess(places[0], STORAGE) as one, BrokerProcess(places[1], STORAGE, options=options) as two:
            topics = trio.run(_make_topics, two.url)
            trio.run(_make_topics, one.url, [*topics])
            turns = [
                (
                    trio.run(_run, one, dict.fromkeys(topics, 0), count, cpu_s),
                    trio.run(_run, two, topics, count, _family_cpu_s),
                )
                for _ in range(1 + plan.cluster.rounds)
            ][1:]
    pairs = [Pair(one_us, two_us) for (_, one_us), (_, two_us) in turns]
    yield line_of_pairs("cluster", "CPU of two workers / one broker", CPU, pairs, "us/record")
    pairs = [Pair(one_rate / 1e3, two_rate / 1e3) for (one_rate, _), (two_rate, _) in turns]
    yield line_of_pairs("cluster", "rate of two workers / one broker", None, pairs, "k/s")


def _family_cpu_s(pid: int) -> float:
    """The processor time so far of a process and its children."""
    return cpu_s(pid) + sum(cpu_s(child.pid) for child in psutil.Process(pid).children())


async def _make_topics(url: str, names: Sequence[str] = ()) -> dict[str, int]:
    """Make topics; without names, one at each worker. Returns them with the nodes that lead them. Raises LoadFailed."""
    found: dict[str, int] = {}
    async with linn.connect(url) as client:
        for name in names or [f"topic-{number}" for number in range(2 * COUNT)]:
            await client.admin.create_topic(name, kind="stream", bytes_max=KEPT_BYTES, overflow="drop-head")
            leader = 0 if names else await _leader_of(client, name)
            if leader not in found.values() or names:
                found[name] = leader
    if not names and len(found) < COUNT:
        raise LoadFailed("one worker leads all topics")
    return found


async def _leader_of(client: Client, topic: str) -> int:
    with trio.fail_after(READY_S_MAX):
        while True:
            try:
                replicas = (await client.admin.topic(topic)).get("replicas")
            except linn.errors.LinnError:
                replicas = None  # Its leader has not opened it yet.
            if replicas is not None and replicas["leader"]:
                return replicas["leader"]
            await trio.sleep(0.02)


async def _run(
    process: BrokerProcess, topics: dict[str, int], count: int, spent_s: Callable[[int], float]
) -> tuple[float, float]:
    """Publish to all topics at once, a client for each; returns the rate, and the processor time for each record in us.

    Raises LoadFailed.
    """
    values = values_of(RECORD_BYTES, count)
    async with AsyncExitStack() as stack:
        clients = {name: await _connect(stack, process.url, node) for name, node in topics.items()}
        before, started = spent_s(process.pid), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for name, client in clients.items():
                nursery.start_soon(_publish, client, name, values)
        seconds, cpu = time.perf_counter() - started, spent_s(process.pid) - before
    records = count * len(topics)
    return records / seconds, cpu / records * 1e6


async def _connect(stack: AsyncExitStack, url: str, node: int) -> Client:
    """Connect to this node, which the kernel chooses sooner or later; 0: to any."""
    for _ in range(CONNECTIONS_MAX):
        attempt = await stack.enter_async_context(AsyncExitStack())
        client = await attempt.enter_async_context(linn.connect(url))
        if not node or (await client.admin.cluster())["node"] == node:
            return client
        await attempt.aclose()
    raise LoadFailed(f"none of {CONNECTIONS_MAX} connections met worker {node}")


async def _publish(client: Client, topic: str, values: list[bytes]) -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many(values)
