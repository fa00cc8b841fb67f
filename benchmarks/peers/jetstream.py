"""NATS JetStream: server and load tool built from the Go module proxy, driven by nats-py."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig

from benchmarks.peers import tool_output
from benchmarks.peers.cargo import Supply
from benchmarks.peers.modules import built
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.plan import CHUNK, WINDOW
from benchmarks.peers.server_process import free_ports, running, values_of
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool

SERVER = ("github.com/nats-io/nats-server/v2", "v2.15.2")
TOOL = ("github.com/nats-io/natscli/nats", "v0.5.0")
TIMEOUT_S = 30.0
UNBOUNDED: dict[str, Any] = {"pending_msgs_limit": -1, "pending_bytes_limit": -1}
"""Limit of messages that wait for their callback; above it the client drops them."""
SYNC_INTERVAL = {"page cache": "2m", "fsync": "always"}


class JetStreamServer:
    """A server with one connection per turn; a topic is a stream with a subject of the same name."""

    def __init__(self, port: int, pid: int, tool: str) -> None:
        self.pids = [pid]
        self.version = SERVER[1].removeprefix("v")
        self._url = f"nats://127.0.0.1:{port}"
        self._tool = tool

    def _with_client(self, work: Callable[[Client, JetStreamContext], Awaitable[None]]) -> None:
        async def connected() -> None:
            client = await nats.connect(self._url, pending_size=64 << 20)
            try:
                # A gate of TIMEOUT_S: what does not answer is no measurement.
                await work(client, client.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=WINDOW))
            finally:
                await client.close()

        try:
            asyncio.run(connected())
        except (NatsError, TimeoutError) as error:
            raise PeerFailed(f"NATS: {error!r}") from error

    def create(self, topic: str, kind: Kind) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            retention = RetentionPolicy.WORK_QUEUE if kind == "queue" else RetentionPolicy.LIMITS
            config = StreamConfig(name=topic, subjects=[topic], storage=StorageType.FILE, retention=retention)
            await stream.add_stream(config)

        self._with_client(work)

    def delete(self, topic: str) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            await stream.delete_stream(topic)

        self._with_client(work)

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        times: list[float] = []

        async def work(client: Client, stream: JetStreamContext) -> None:
            with watch:
                times.append(time.perf_counter())
                for value in supply.singles():
                    await stream.publish(topic, value)
                    times.append(time.perf_counter())

        self._with_client(work)
        return times

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            answers: list[asyncio.Future[Any]] = []
            with watch:
                for values in supply.chunks(CHUNK):
                    for value in values:
                        answers.append(await stream.publish_async(topic, value))
                await stream.publish_async_completed()
            for answer in answers:
                answer.result()

        self._with_client(work)

    publish_bulk = publish_calls

    def work_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=WINDOW)
        received: list[Any] = []

        async def work(client: Client, stream: JetStreamContext) -> None:
            is_full = asyncio.Event()

            async def arrived(message: Any) -> None:
                received.append(message.data)
                await message.ack()
                if len(received) == expected:
                    is_full.set()

            with watch:
                await stream.subscribe(topic, "workers", cb=arrived, config=config, manual_ack=True, **UNBOUNDED)
                await asyncio.wait_for(is_full.wait(), TIMEOUT_S * 2)
                await client.flush(int(TIMEOUT_S))

        self._with_client(work)
        return values_of(received)

    work_bulk = work_records

    def read_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
        received: list[Any] = []

        async def work(client: Client, stream: JetStreamContext) -> None:
            is_full = asyncio.Event()

            async def arrived(message: Any) -> None:
                received.append(message.data)
                if len(received) == expected:
                    is_full.set()

            with watch:
                await stream.subscribe(topic, cb=arrived, config=config, ordered_consumer=True, **UNBOUNDED)
                await asyncio.wait_for(is_full.wait(), TIMEOUT_S * 2)

        self._with_client(work)
        return values_of(received)

    def read_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []

        async def work(client: Client, stream: JetStreamContext) -> None:
            config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
            consumer = await stream.pull_subscribe(topic, config=config)
            with watch:
                while len(received) < expected:
                    messages = await consumer.fetch(min(CHUNK, expected - len(received)), timeout=TIMEOUT_S)
                    received.extend([message.data for message in messages])

        self._with_client(work)
        return values_of(received)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        return self._bench(count, "pub", "async", topic, "--stream", topic, "--size", f"{record_bytes}B")

    def tool_read(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        return self._bench(count, "ordered", "--stream", topic, "--size", f"{record_bytes}B")

    def _bench(self, count: int, *options: str) -> ToolRun:
        place = [self._tool, "--no-context", "--server", self._url]
        limits = ["--msgs", str(count), "--batch", str(WINDOW), "--no-progress"]
        text, seconds, cpu_s = run_tool([*place, "bench", "js", *options, *limits])
        return ToolRun(tool_output.nats_bench(text), seconds, cpu_s)


class JetStreamPeer:
    """A current server, and its own command line."""

    facts = Facts(
        name="NATS JetStream",
        client=f"nats-py {version('nats-py')} on asyncio (Python)",
        settings={
            "page cache": "file storage, one replica, sync_interval at its default of two minutes",
            "fsync": "file storage, one replica, sync_interval: always",
        },
        calls={
            "publish one at a time": "`await js.publish(subject, value)`",
            "publish to a queue, a call per record": f"`await js.publish_async(subject, value)`, {WINDOW:,} pending",
            "consume a queue, an ack per record": f"a group's callback, `await message.ack()`; {WINDOW:,} pending",
            "publish to a stream, a call per record": f"`await js.publish_async(subject, value)`, {WINDOW:,} pending",
            "read a stream, record by record": "an ordered consumer's callback",
            "read a stream in bulk": f"`consumer.fetch({CHUNK:,})`, no acks",
            "publish to a stream, by load tool": f"`nats bench js pub async --batch {WINDOW}` (Go)",
            "read a stream, by load tool": f"`nats bench js ordered --batch {WINDOW}` (Go)",
        },
        lacks={
            "publish to a queue in bulk": "nats-py has no call for it",
            "consume a queue in bulk": "a stream with work-queue retention wants an ack of each record",
            "publish to a stream in bulk": "nats-py has no call for it",
            "publish to a stream in transactions": "nats-py has no call for it",
        },
        notes=(
            "A queue is a stream with work-queue retention. Where a record is handed to a callback the server pushed "
            "it: in nats-py that is faster than `fetch` of many.",
            "nats-py is the bottleneck where the client's cores are near one and the server's far below: the load tool "
            "shows what the server takes from a client in Go.",
        ),
    )

    def check(self) -> None:
        """Build the server and its tool, once."""
        self._server, self._tool = built(*SERVER), built(*TOOL)

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[JetStreamServer]:
        """With file storage in `folder`."""
        (port,) = free_ports(1)
        config = folder / "nats.conf"
        storage = f"store_dir: {json.dumps(str(folder / 'data'))}, sync_interval: {SYNC_INTERVAL[durability]}"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ {storage} }}\n')
        with running([self._server, "-c", str(config)], folder, port) as pid:
            yield JetStreamServer(port, pid, self._tool)


PEERS = {"nats": JetStreamPeer()}
