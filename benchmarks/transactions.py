"""Lines of transactions: their rate beside that of the same publishes without one, and what a small one costs.

Laws: with several names at once, each has tasks, transactions and producers of its own in one client, as the workers of
`Client.process` do, and the figure is the sum over all of them; the topic is full before anything is measured.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import trio

import linn
from benchmarks.client import publish_many, some_values
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import RECORD_BYTES, cpu_s
from benchmarks.plan import RING_BYTES, Plan
from benchmarks.servers import broker, fresh_folder
from linn.client.client import Client
from linn.testing.process import BrokerProcess

GROUP = "exactly-once"
RATIO = Bound(0.5)
"""Share of the plain rate that transactions of LARGE records keep."""
SMALL_RATE = Bound(20_000)
LARGE, SMALL = 1_000, 10
"""Records of a transaction."""
NAMES = {1: "1 name", 8: "sum of 8 names"}
"""Number of names whose transactions go on at once, in one client."""
TOPIC = "transacted"
CONFIG = f"""
[topics.{TOPIC}]
kind = "stream"
bytes_max = {RING_BYTES}
overflow = "drop-head"
"""


class Turn(NamedTuple):
    """The result of one run: records per second, and the CPU time of each side for each call or transaction."""

    rate: float
    broker_us: float
    client_us: float


@dataclass(frozen=True)
class Load:
    """So many calls of `publish_many` of `values`, by so many names at once."""

    values: list[bytes]
    calls: int
    names: int

    async def transacted(self, client: Client, name: str) -> None:
        """Make the calls of one name, each in a transaction of its own."""
        for _ in range(self.calls // self.names):
            async with client.transaction(name) as tx:
                await tx.publish_many(TOPIC, self.values)

    async def plain(self, client: Client, name: str) -> None:
        """Make the same calls without a transaction."""
        async with client.producer(TOPIC) as producer:
            for _ in range(self.calls // self.names):
                await producer.publish_many(self.values)

    def run(self, process: BrokerProcess, work: Callable[[Client, str], Awaitable[None]]) -> Turn:
        """Run one of the two with a client of its own, in which the names are open before the clock runs."""
        return trio.run(self._run, process, work)

    async def _run(self, process: BrokerProcess, work: Callable[[Client, str], Awaitable[None]]) -> Turn:
        names = [f"bench-{number}" for number in range(self.names)]
        async with linn.connect(process.url) as client:
            for name in names:
                async with client.transaction(name) as tx:
                    await tx.publish_many(TOPIC, self.values[:1])
            started = time.perf_counter(), cpu_s(process.pid), time.process_time()
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(work, client, name)
            ended = time.perf_counter(), cpu_s(process.pid), time.process_time()
        seconds, broker_s, client_s = (after - before for before, after in zip(started, ended, strict=True))
        calls = self.calls // self.names * self.names
        return Turn(calls * len(self.values) / seconds, broker_s / calls * 1e6, client_s / calls * 1e6)


def transaction_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:
        trio.run(_fill, process.url, 2 * (plan.turn_bytes // RECORD_BYTES))
        for names, who in NAMES.items():
            load = Load(some_values(LARGE), plan.large_transactions, names)
            name, bound = f"transactions of {LARGE:,}, {who}", RATIO if names == 1 else None
            yield _beside_plain(name, plan, process, load, bound)
        for names, who in NAMES.items():
            load = Load(some_values(SMALL), plan.small_transactions, names)
            turns = [load.run(process, load.transacted) for _ in range(plan.rounds)]
            name, bound = f"transactions of {SMALL}, {who}", SMALL_RATE if names == 1 else None
            yield Line(GROUP, name, "records/s", bound, [turn.rate for turn in turns])
            yield Line(GROUP, f"{name}, broker CPU", "us", None, [turn.broker_us for turn in turns])
            yield Line(GROUP, f"{name}, client CPU", "us", None, [turn.client_us for turn in turns])


async def _fill(url: str, count: int) -> None:
    async with linn.connect(url) as client:
        await publish_many(client, count, TOPIC)


def _beside_plain(name: str, plan: Plan, process: BrokerProcess, load: Load, bound: Bound | None) -> Line:
    """Compare transactions with plain publishes; they begin by turns, so that neither is always the second."""
    pairs = []
    for number in range(plan.rounds):
        plain_first = number % 2 == 0
        first, second = (load.plain, load.transacted) if plain_first else (load.transacted, load.plain)
        turns = load.run(process, first), load.run(process, second)
        plain, transacted = turns if plain_first else turns[::-1]
        pairs.append(Pair(plain.rate / 1e3, transacted.rate / 1e3, plain.broker_us, transacted.broker_us))
    return line_of_pairs(GROUP, name, bound, pairs, "k/s")
