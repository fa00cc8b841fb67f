"""RabbitMQ, driven by pika, and PerfTest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]

from benchmarks.peers import tool_output
from benchmarks.peers.amqp_session import PERSISTENT, ConfirmedPublishing, Consuming, Session
from benchmarks.peers.cargo import Supply, Tally
from benchmarks.peers.jars import class_path, java
from benchmarks.peers.peer import Durability, Facts, Kind, PeerMissing
from benchmarks.peers.server_process import free_ports, program, running, until_answered
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool

INSTALL = "apt-get install rabbitmq-server (and stop and disable the service that it starts)"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The package's own script. The one in the path runs as another user, in that user's folder."""
PERF_TEST = "com.rabbitmq:perf-test:2.22.1"
CHUNK = 100
UNCONFIRMED_MAX = 2_000
PREFETCH = 1_000
ACK_EVERY = 100
TOOL_SECONDS_MAX = 20
QUEUE: dict[Durability, dict[str, Any]] = {
    "page cache": {"x-queue-type": "classic", "x-queue-version": 2},
    "fsync": {"x-queue-type": "quorum"},
}
STREAM = {"x-queue-type": "stream"}


class RabbitServer:
    """One node with distribution on loopback."""

    def __init__(self, port: int, pid: int, jars: str, durability: Durability) -> None:
        self.pids = [pid]
        self._port = port
        self._jars = jars
        self._durability = durability
        self._admin = until_answered(self._connection, pika.exceptions.AMQPError, "RabbitMQ")
        self.version = str(self._admin._impl.server_properties["version"])

    def close(self) -> None:
        """Leave."""
        if self._admin.is_open:
            self._admin.close()

    def _connection(self) -> Any:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0))

    def create(self, topic: str, kind: Kind) -> None:
        arguments = STREAM if kind == "stream" else QUEUE[self._durability]
        self._admin.channel().queue_declare(topic, durable=True, arguments=arguments)

    def delete(self, topic: str) -> None:
        self._admin.channel().queue_delete(topic)

    def publish_singly(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> list[float]:
        taken: list[float] = []
        connection = self._connection()
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            with watch:
                for value in supply.singles():
                    started = time.perf_counter()
                    channel.basic_publish("", topic, value, PERSISTENT)
                    taken.append(time.perf_counter() - started)
        finally:
            connection.close()
        return taken

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        session = Session(self._port)

        def done() -> None:
            watch.end()
            session.done()

        def begin(channel: Any) -> None:
            watch.begin()
            ConfirmedPublishing(topic, supply.chunks(CHUNK), UNCONFIRMED_MAX, done).begin(channel)

        session.run(begin)

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        self._consume(topic, tally, watch, {"x-stream-offset": "first"})

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        self._consume(topic, tally, watch, {})

    def _consume(self, topic: str, tally: Tally, watch: Stopwatch, arguments: dict[str, str]) -> None:
        session = Session(self._port)

        def done() -> None:
            watch.end()
            session.done()

        def begin(channel: Any) -> None:
            watch.begin()
            Consuming(topic, tally, PREFETCH, ACK_EVERY, done).begin(channel, arguments)

        session.run(begin)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        confirms = ["--confirm", str(UNCONFIRMED_MAX), "--flag", "persistent", "--size", str(record_bytes)]
        options = ["--producers", "1", "--consumers", "0", "--pmessages", str(count), *confirms]
        return self._perf_test("sending", topic, *options)

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        acks = ["--qos", str(PREFETCH), "--multi-ack-every", str(ACK_EVERY)]
        options = ["--producers", "0", "--consumers", "1", "--cmessages", str(count), *acks]
        return self._perf_test("receiving", topic, *options)

    def _perf_test(self, direction: str, topic: str, *options: str) -> ToolRun:
        place = ["--uri", f"amqp://127.0.0.1:{self._port}", "--predeclared", "--queue", topic]
        limit = ["--time", str(TOOL_SECONDS_MAX)]
        command = [java(), "-cp", self._jars, "com.rabbitmq.perf.PerfTest", *place, *limit, *options]
        text, seconds, cpu_s = run_tool(command)
        return ToolRun(tool_output.perf_test(text, direction), seconds, cpu_s)


class RabbitPeer:
    """From Debian's package; PerfTest from Maven Central."""

    tool_kind: Kind = "queue"
    warm_up_s = 0.0
    facts = Facts(
        name="RabbitMQ",
        client=f"pika {pika.__version__} (Python), SelectConnection where it is batched",
        tool="PerfTest (Java), one producer or one consumer, to and from a queue",
        settings={
            "page cache": "persistent messages; queues classic version 2, streams",
            "fsync": "persistent messages; quorum queues of one member, whose log is synced before a confirmation",
        },
        queue=f"prefetch {PREFETCH:,}, one ack for every {ACK_EVERY} records",
        batched=f"publisher confirms, at most {UNCONFIRMED_MAX:,} records unconfirmed",
        notes=(
            "The broker uses several cores.",
            "Streams are read over AMQP 0.9.1, like queues. RabbitMQ's own protocol for streams sends records in "
            "batches and is faster; its load tool is not on Maven Central.",
            "Each run of PerfTest is a new Java process: a run of a few seconds is partly the compiler's warm-up.",
            "pika is the bottleneck where the client's cores are near one and the server's are not.",
        ),
    )

    def check(self) -> None:
        """The server's script, epmd, and the jars, which are fetched once."""
        if not SERVER.exists():
            raise PeerMissing(f"rabbitmq-server is not installed: {INSTALL}")
        program("epmd", INSTALL)
        java()
        self._jars = class_path([PERF_TEST])

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[RabbitServer]:
        """A node of its own name, with its own epmd, so that no other node is met."""
        port, distribution, names = free_ports(3)
        environment = _environment(folder, port, distribution, names)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
        with running([program("epmd", INSTALL)], folder, names, environment):
            with running([str(SERVER)], folder, port, environment) as pid:
                server = RabbitServer(port, pid, self._jars, durability)
                try:
                    yield server
                finally:
                    server.close()


def _environment(folder: Path, port: int, distribution: int, names: int) -> dict[str, str]:
    settings = {
        "NODENAME": "linn-peers@localhost",
        "NODE_PORT": str(port),
        "DIST_PORT": str(distribution),
        "MNESIA_BASE": str(folder / "data"),
        "LOG_BASE": str(folder / "log"),
        "CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "CONF_ENV_FILE": str(folder / "no-environment.conf"),
        "ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # The script becomes the server, instead of a process beside it.
        "ALLOW_INPUT": "true",
    }
    return {f"RABBITMQ_{name}": value for name, value in settings.items()} | {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


PEERS = {"rabbitmq": RabbitPeer()}
