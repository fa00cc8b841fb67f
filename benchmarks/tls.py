"""TLS lines: the same work of one client over a plain listener and over one with TLS, in turns at the same broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median

import trio

import linn
from benchmarks.client import consume_batches, fill, publish_many
from benchmarks.latency import timed_publishes
from benchmarks.line import Line, Pair, line_of_pairs
from benchmarks.load import RECORD_BYTES
from benchmarks.plan import Plan
from benchmarks.servers import CONFIG, fresh_folder, set_apart
from linn.client.client import Client
from linn.testing.certificates import AUTHORITY, tls_table
from linn.testing.process import BrokerProcess

LISTENERS = """
[listeners.plain]
address = "127.0.0.1:0"
[listeners.secure]
address = "127.0.0.1:0"
tls = "bench"
[tls.bench]
certificate = "{certificate}"
key = "{key}"
"""
GB = 1e9
Work = Callable[[Client, int], Awaitable[float]]
"""A benchmark that handles so many records and returns the seconds that count."""


def tls_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one: the floor is the plain listener."""
    with fresh_folder(plan.folder) as folder:
        config = CONFIG + LISTENERS.format(**tls_table(folder, "127.0.0.1"))
        with BrokerProcess(folder, config, listen=()) as process:
            set_apart(process.pid)
            plain, secure = process.urls
            trio.run(_run, folder, plain, publish_many, 2 * (plan.turn_bytes // RECORD_BYTES))
            yield _rates(plan, folder, (plain, secure), "publish, dram", publish_many)
            trio.run(_run, folder, plain, fill, plan.records)
            yield _rates(plan, folder, (plain, secure), "push, dram", consume_batches)
            trio.run(_run, folder, plain, fill_log, plan.records)
            yield _rates(plan, folder, (plain, secure), "read, segmented-log", read_log)
            yield _latency(plan, folder, (plain, secure))


def _rates(plan: Plan, folder: Path, urls: tuple[str, str], name: str, work: Work) -> Line:
    size = plan.records * RECORD_BYTES / GB
    pairs = [
        Pair(*(size / trio.run(_run, folder, url, work, plan.records) for url in urls)) for _ in range(plan.rounds)
    ]
    return line_of_pairs("tls", name, None, pairs, "GB/s")


def _latency(plan: Plan, folder: Path, urls: tuple[str, str]) -> Line:
    async def taken_us(client: Client, count: int) -> float:
        return median(await timed_publishes(client, "ring", count)) * 1e6

    pairs = [
        Pair(*(trio.run(_run, folder, url, taken_us, plan.single_calls) for url in urls)) for _ in range(plan.rounds)
    ]
    return line_of_pairs("tls", "one publish, p50, dram", None, pairs, "us")


async def _run(folder: Path, url: str, work: Work, count: int) -> float:
    tls = linn.Tls(ca=folder / AUTHORITY) if url.startswith("linns:") else None
    async with linn.connect(url, tls=tls) as client:
        return await work(client, count)


async def fill_log(client: Client, count: int) -> float:
    """Publish the records to read from files."""
    return await publish_many(client, count, "log")


async def read_log(client: Client, count: int) -> float:
    """Consume in a loop over batches, which the broker sends from files."""
    return await consume_batches(client, count, "log")
