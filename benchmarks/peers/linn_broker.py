"""linn, with its own client for Python and `linn bench`."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

import linn
from benchmarks.peers import tool_output
from benchmarks.peers.cargo import Supply, Tally
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool
from linn.client.client import Client
from linn.core.errors.tree import LimitExceeded, LinnError
from linn.testing.process import BrokerProcess

CHUNK = 10_000
CALLS = 1_000
"""Of publish_nowait, between which what was gathered is not sent."""
FSYNC = {"page cache": "os", "fsync": "always"}


class LinnServer:
    """`linn serve` with one connection per piece of work."""

    version = linn.__version__

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pids = [pid]

    def _with_client(self, work: Callable[[Client], Awaitable[None]]) -> None:
        async def connected() -> None:
            async with linn.connect(self.url) as client:
                await work(client)

        try:
            trio.run(connected)
        except LinnError as error:
            raise PeerFailed(f"linn: {error}") from error

    def create(self, topic: str, kind: Kind) -> None:
        async def work(client: Client) -> None:
            await client.admin.create_topic(topic, kind=kind)

        self._with_client(work)

    def delete(self, topic: str) -> None:
        async def work(client: Client) -> None:
            await client.admin.delete_topic(topic)

        self._with_client(work)

    def publish_singly(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> list[float]:
        taken: list[float] = []

        async def work(client: Client) -> None:
            async with client.producer(topic) as producer:
                with watch:
                    for value in supply.singles():
                        started = time.perf_counter()
                        await producer.publish(value)
                        taken.append(time.perf_counter() - started)

        self._with_client(work)
        return taken

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            async with client.producer(topic) as producer:
                with watch:
                    for values in supply.chunks(CHUNK):
                        await producer.publish_many(values)

        self._with_client(work)

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic) as consumer:
                    while not tally.is_full:
                        batch = await consumer.next_batch()
                        tally.add([value for value in batch.values if value is not None])

        self._with_client(work)

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic) as consumer:
                    while not tally.is_full:
                        batch = await consumer.next_batch()
                        tally.add([value for value in batch.values if value is not None])
                        settled = batch.ack()
                    await settled

        self._with_client(work)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return self._bench("publish", topic, "--count", str(count), "--size", str(record_bytes))

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return self._bench("consume", topic, "--count", str(count))

    def _bench(self, *options: str) -> ToolRun:
        command = [sys.executable, "-m", "linn", "bench", *options, "--url", self.url, "--json"]
        text, seconds, cpu_s = run_tool(command)
        return ToolRun(tool_output.linn_bench(text), seconds, cpu_s)


class CallingServer(LinnServer):
    """The same broker, used with a call per record, as most peers' clients are."""

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            async with client.producer(topic) as producer:
                with watch:
                    for values in supply.chunks(CALLS):
                        for value in values:
                            try:
                                producer.publish_nowait(value)
                            except LimitExceeded:
                                await producer.flush()
                                producer.publish_nowait(value)
                        await trio.lowlevel.checkpoint()
                    await producer.flush()

        self._with_client(work)

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic) as consumer:
                    while not tally.is_full:
                        message = await anext(consumer)
                        tally.add([message.value or b""])

        self._with_client(work)

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic) as consumer:
                    while not tally.is_full:
                        message = await anext(consumer)
                        tally.add([message.value or b""])
                        settled = message.ack()
                    await settled

        self._with_client(work)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return None

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return None


SETTINGS: dict[Durability, str] = {
    "page cache": 'segmented-log, fsync = "os"',
    "fsync": 'segmented-log, fsync = "always"',
}
CLIENT = "linn.connect on trio (Python)"
BULK = Facts(
    name="linn",
    client=CLIENT,
    tool="linn bench",
    settings=SETTINGS,
    queue="a topic of kind queue; Batch.ack, and the last one awaited",
    batched=f"publish_many of {CHUNK:,}, confirmed before the next; its batches are pipelined",
    notes=(
        "The broker is one Python process with one event loop: it uses one core, however many there are.",
        "Records travel, are stored and are delivered in the batches that the producer made; the broker does not "
        "open them.",
        "One call publishes many records, and one ack is for a batch of them. Of the others' clients only those that "
        "pipeline commands have anything like it: compare a client's call per record with the next system.",
    ),
)
CALLING = Facts(
    name="linn, a call per record",
    client=CLIENT,
    tool="none: the one above",
    settings=SETTINGS,
    queue="a topic of kind queue; a loop over messages and Message.ack of each, and the last one awaited",
    batched="publish_nowait of each record, flush where the producer's buffer is full and at the end",
    notes=(
        "The same broker and the same protocol: the client gathers batches and merges acks by itself.",
        "One at a time, both rows of linn are the same work: how far they are apart is the noise of the run.",
    ),
)


class LinnPeer:
    """The one that the others are beside."""

    tool_kind: Kind = "stream"
    warm_up_s = 0.0

    def __init__(self, facts: Facts, kind: type[LinnServer]) -> None:
        self.facts = facts
        self._kind = kind

    def check(self) -> None:
        """It is here."""

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[LinnServer]:
        """`linn serve` with its data in `folder`."""
        with BrokerProcess(folder, f'[storage.segmented-log]\nfsync = "{FSYNC[durability]}"\n') as process:
            yield self._kind(process.url, process.pid)


PEERS = {"linn": LinnPeer(BULK, LinnServer), "linn-calls": LinnPeer(CALLING, CallingServer)}
