"""NATS JetStream, driven by nats-py."""

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

from benchmarks.peers.cargo import Supply, Tally
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.server_process import free_ports, program, running
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun

INSTALL = "apt-get install nats-server (and stop and disable the service that it starts)"
CHUNK = 1_000
UNCONFIRMED_MAX = 4_000
TIMEOUT_S = 30.0
DURABLE = "workers"
"""The name of a queue's consumer."""


class JetStreamServer:
    """A server with one connection per piece of work; a topic is a stream with a subject of the same name."""

    def __init__(self, port: int, pid: int) -> None:
        self.pids = [pid]
        self._url = f"nats://127.0.0.1:{port}"
        self.version = ""
        self._with_client(self._ask_version)

    async def _ask_version(self, client: Client, stream: JetStreamContext) -> None:
        found = client.connected_server_version
        self.version = f"{found.major}.{found.minor}.{found.patch}"

    def _with_client(self, work: Callable[[Client, JetStreamContext], Awaitable[None]]) -> None:
        async def connected() -> None:
            client = await nats.connect(self._url, pending_size=64 << 20)
            try:
                # A gate of TIMEOUT_S: what does not answer is no measurement.
                await work(client, client.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=UNCONFIRMED_MAX))
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
            if kind == "queue":
                consumer = ConsumerConfig(durable_name=DURABLE, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=65_536)
                await stream.add_consumer(topic, consumer)

        self._with_client(work)

    def delete(self, topic: str) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            await stream.delete_stream(topic)

        self._with_client(work)

    def publish_singly(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> list[float]:
        taken: list[float] = []

        async def work(client: Client, stream: JetStreamContext) -> None:
            with watch:
                for value in supply.singles():
                    started = time.perf_counter()
                    await stream.publish(topic, value)
                    taken.append(time.perf_counter() - started)

        self._with_client(work)
        return taken

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            with watch:
                answers: list[asyncio.Future[Any]] = []
                for values in supply.chunks(CHUNK):
                    for value in values:
                        answers.append(await stream.publish_async(topic, value))
                    answers = [answer for answer in answers if not _is_confirmed(answer)]
                for answer in answers:
                    await answer

        self._with_client(work)

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            is_full = asyncio.Event()

            async def arrived(message: Any) -> None:
                tally.add([message.data])
                if tally.is_full:
                    is_full.set()

            config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
            with watch:
                await stream.subscribe(
                    topic,
                    cb=arrived,
                    config=config,
                    ordered_consumer=True,
                    pending_msgs_limit=-1,
                    pending_bytes_limit=-1,
                )
                await asyncio.wait_for(is_full.wait(), TIMEOUT_S * 2)

        self._with_client(work)

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        async def work(client: Client, stream: JetStreamContext) -> None:
            consumer = await stream.pull_subscribe_bind(DURABLE, topic)
            with watch:
                while not tally.is_full:
                    messages = await consumer.fetch(min(CHUNK, tally.left), timeout=TIMEOUT_S)
                    tally.add([message.data for message in messages])
                    for message in messages:
                        await message.ack()
                await client.flush(int(TIMEOUT_S))

        self._with_client(work)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return None

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return None


def _is_confirmed(answer: asyncio.Future[Any]) -> bool:
    """Raises what a refusal says."""
    return answer.done() and answer.result() is not None


class JetStreamPeer:
    """From Debian's package."""

    tool_kind: Kind = "stream"
    warm_up_s = 0.0
    facts = Facts(
        name="NATS JetStream",
        client=f"nats-py {version('nats-py')} on asyncio (Python)",
        tool="none: nats bench is not among Debian's packages",
        settings={
            "page cache": "file storage, one replica; the server syncs every two minutes",
        },
        queue=f"a stream with work-queue retention and a pull consumer: fetches of {CHUNK:,}, each record acked",
        batched=f"publish_async, at most {UNCONFIRMED_MAX:,} unconfirmed",
        notes=(
            "A confirmation that waits for a sync (sync_interval: always) came with 2.10; Debian's package is older.",
            "nats-py is the bottleneck where the server's cores stay far under one: the server takes more from a "
            "client in Go.",
        ),
    )

    def check(self) -> None:
        """The server."""
        program("nats-server", INSTALL)

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[JetStreamServer]:
        """With file storage in `folder`."""
        (port,) = free_ports(1)
        config = folder / "nats.conf"
        store = json.dumps(str(folder / "data"))
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: {store} }}\n')
        with running([program("nats-server", INSTALL), "-c", str(config)], folder, port) as pid:
            yield JetStreamServer(port, pid)


PEERS = {"nats": JetStreamPeer()}
