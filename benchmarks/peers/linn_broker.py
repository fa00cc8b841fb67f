"""linn, with its own client for Python and `linn bench`."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

import linn
import linn.sync
from benchmarks.cluster.processes import COUNT, POLL_S, cluster_missing, three_brokers
from benchmarks.peers import tool_output
from benchmarks.peers.cargo import Supply
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed, PeerMissing
from benchmarks.peers.plan import CHUNK, WINDOW, of_three
from benchmarks.peers.server_process import values_of
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool
from linn.client.client import Client
from linn.core.errors.tree import LinnError
from linn.descriptions import TopicSettings
from linn.testing.process import BrokerProcess

FSYNC = {"page cache": "os", "fsync": "always"}


class LinnServer:
    """One broker, or three of a cluster, with one client per turn."""

    version = linn.__version__

    def __init__(self, url: str, pids: list[int], settings: TopicSettings) -> None:
        """`pids` have the brokers' and that of etcd, which a cluster needs."""
        self.url = url
        self.pids = pids
        self._settings = settings

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
            settings: TopicSettings = self._settings | {"kind": kind}
            await client.admin.create_topic(topic, **settings)
            while "replicas" in self._settings and not await _is_whole(client, topic):
                await trio.sleep(POLL_S)

        self._with_client(work)

    def delete(self, topic: str) -> None:
        async def work(client: Client) -> None:
            await client.admin.delete_topic(topic)

        self._with_client(work)

    def leader_pid(self, topic: str) -> int:
        """The process that leads a topic of three brokers."""
        with linn.sync.connect(self.url) as client:
            return self.pids[client.admin.topic(topic)["replicas"]["leader"] - 1]

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        times: list[float] = []

        async def work(client: Client) -> None:
            async with client.producer(topic) as producer:
                with watch:
                    times.append(time.perf_counter())
                    for value in supply.singles():
                        await producer.publish(value)
                        times.append(time.perf_counter())

        self._with_client(work)
        return times

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            async with client.producer(topic) as producer:
                with watch:
                    for values in supply.chunks(CHUNK):
                        for value in values:
                            producer.publish_nowait(value)
                        if supply.taken % WINDOW:
                            await trio.lowlevel.checkpoint()
                        else:
                            await producer.flush()
                    await producer.flush()

        self._with_client(work)

    def publish_bulk(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            async with client.producer(topic) as producer:
                with watch:
                    for values in supply.chunks(WINDOW):
                        await producer.publish_many(values)

        self._with_client(work)

    def publish_transactions(self, topic: str, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client) -> None:
            async with client.transaction("peers"):
                pass  # The name is open before the clock runs.
            with watch:
                for values in supply.chunks(CHUNK):
                    async with client.transaction("peers") as tx:
                        await tx.publish_many(topic, values)

        self._with_client(work)

    def work_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[bytes | None] = []

        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic, prefetch=WINDOW) as consumer:
                    async for message in consumer:
                        received.append(message.value)
                        settled = message.ack()
                        if len(received) == expected:
                            break
                    await settled

        self._with_client(work)
        return values_of(received)

    def work_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[bytes | None] = []

        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic, prefetch=WINDOW) as consumer:
                    while len(received) < expected:
                        batch = await consumer.next_batch()
                        received.extend(batch.values)
                        settled = batch.ack()
                    await settled

        self._with_client(work)
        return values_of(received)

    def read_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[bytes | None] = []

        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic, prefetch=WINDOW) as consumer:
                    async for message in consumer:
                        received.append(message.value)
                        if len(received) == expected:
                            break

        self._with_client(work)
        return values_of(received)

    def read_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[bytes | None] = []

        async def work(client: Client) -> None:
            with watch:
                async with client.consumer(topic, prefetch=WINDOW) as consumer:
                    while len(received) < expected:
                        received.extend((await consumer.next_batch()).values)

        self._with_client(work)
        return values_of(received)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        options = ["--count", str(count), "--size", str(record_bytes), "--batch", str(WINDOW)]
        return self._bench("publish", topic, *options)

    def tool_read(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        return self._bench("consume", topic, "--count", str(count))

    def _bench(self, *options: str) -> ToolRun:
        command = [sys.executable, "-m", "linn", "bench", *options, "--url", self.url, "--json"]
        text, seconds, cpu_s = run_tool(command)
        return ToolRun(tool_output.linn_bench(text), seconds, cpu_s)


async def _is_whole(client: Client, topic: str) -> bool:
    """Whether all replicas are in sync."""
    replicas = (await client.admin.topic(topic)).get("replicas")
    return replicas is not None and len(replicas["in_sync"]) == COUNT


class LinnPeer:
    """The system that the others are compared with."""

    facts = Facts(
        name="linn",
        client="linn.connect on trio (Python)",
        settings={"page cache": 'segmented-log, fsync = "os"', "fsync": 'segmented-log, fsync = "always"'},
        calls={
            "publish one at a time": "`await producer.publish(value)`",
            "publish to a queue, a call per record": f"`producer.publish_nowait(value)`, `flush` after {WINDOW:,}",
            "consume a queue, an ack per record": "`async for message in consumer`, `message.ack()`; the last awaited",
            "publish to a stream, a call per record": f"`producer.publish_nowait(value)`, `flush` after {WINDOW:,}",
            "read a stream, record by record": "`async for message in consumer`",
            "publish to a queue in bulk": f"`await producer.publish_many(values)` of {WINDOW:,}",
            "consume a queue in bulk": "`consumer.next_batch()`, `batch.ack()`; the last awaited",
            "publish to a stream in bulk": f"`await producer.publish_many(values)` of {WINDOW:,}",
            "read a stream in bulk": "`consumer.next_batch()`",
            "publish to a stream in transactions": (
                f"`async with client.transaction(name) as tx: await tx.publish_many(topic, values)` of {CHUNK:,}"
            ),
            "publish to a stream, by load tool": f"`linn bench publish --batch {WINDOW}` (Python)",
            "read a stream, by load tool": "`linn bench consume` (Python), batch by batch",
        },
        notes=(
            "The broker is one Python process with one event loop: it uses one core, however many there are.",
            "Records travel, are stored and are delivered in the batches that the producer made; the broker does not "
            "open them. Its client gathers batches and merges acks also where it is called once per record.",
        ),
    )

    def check(self) -> None:
        """Nothing is fetched."""

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[LinnServer]:
        """`linn serve` with its data in `folder`."""
        with BrokerProcess(folder, f'[storage.segmented-log]\nfsync = "{FSYNC[durability]}"\n') as process:
            yield LinnServer(process.url, [process.pid], {})


class LinnCluster(LinnPeer):
    """Three brokers beside an etcd."""

    facts = of_three(
        LinnPeer.facts,
        {
            "page cache": 'acks=all, replicas = 3, min_in_sync = 2, fsync = "os"',
            "fsync": 'acks=all, replicas = 3, min_in_sync = 2, fsync = "always"',
        },
    )

    def check(self) -> None:
        """Raises PeerMissing: there is no etcd."""
        if missing := cluster_missing():
            raise PeerMissing(missing)

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[LinnServer]:
        """Three times `linn serve`, and etcd, with their data in `folder`."""
        settings: TopicSettings = {"storage": FSYNC[durability], "replicas": COUNT, "min_in_sync": COUNT - 1}
        with three_brokers(folder) as brokers:
            processes, etcd = [brokers.processes[node] for node in sorted(brokers.processes)], brokers.etcd
            addresses = ",".join(process.address for process in processes)
            pids = [process.pid for process in processes] + ([etcd] if etcd is not None else [])
            yield LinnServer(f"linn://{addresses}", pids, settings)


PEERS = {"linn": LinnPeer(), "linn-three": LinnCluster()}
