"""RabbitMQ, driven by pika, and PerfTest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]

from benchmarks.peers import tool_output
from benchmarks.peers.amqp_session import PERSISTENT, ConfirmedPublishing, Consuming, Session
from benchmarks.peers.cargo import Supply
from benchmarks.peers.jars import class_path, java
from benchmarks.peers.peer import Durability, Facts, Kind, PeerMissing
from benchmarks.peers.plan import CHUNK, WINDOW
from benchmarks.peers.server_process import free_ports, program, running, until_answered
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.stream_session import StreamSession
from benchmarks.peers.tool import ToolFailed, ToolRun, run_tool

INSTALL = "apt-get install rabbitmq-server (and stop and disable the service that it starts)"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The package's own script. The one in the path runs as another user, in that user's folder."""
PERF_TEST = "com.rabbitmq:perf-test:2.22.1"
TOOL_SECONDS_MAX = 30
QUEUE: dict[Durability, dict[str, Any]] = {
    "page cache": {"x-queue-type": "classic", "x-queue-version": 2},
    "fsync": {"x-queue-type": "quorum"},
}
STREAM = {"x-queue-type": "stream"}
CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
stream.listeners.tcp.1 = 127.0.0.1:{stream_port}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream_port}
"""
FROM_FIRST = {"x-stream-offset": "first"}


class RabbitServer:
    """One node with distribution on loopback."""

    def __init__(self, port: int, stream_port: int, pid: int, jars: str, durability: Durability) -> None:
        self.pids = [pid]
        self._port = port
        self._streams = StreamSession(stream_port)
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

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        connection = self._connection()
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            with watch:
                times = [time.perf_counter()]
                for value in supply.singles():
                    channel.basic_publish("", topic, value, PERSISTENT)
                    times.append(time.perf_counter())
        finally:
            connection.close()
        return times

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        session = Session(self._port)

        def done() -> None:
            watch.end()
            session.done()

        def begin(channel: Any) -> None:
            watch.begin()
            ConfirmedPublishing(topic, supply, done).begin(channel)

        session.run(begin)

    def publish_bulk(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        if kind == "stream":
            self._streams.publish(topic, supply, watch)
        else:
            self.publish_calls(topic, kind, supply, watch)

    def work_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        return self._consume(topic, expected, watch, 1, {})

    def work_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        return self._consume(topic, expected, watch, CHUNK, {})

    def read_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        return self._consume(topic, expected, watch, CHUNK, FROM_FIRST)

    def read_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        return self._streams.read(topic, expected, watch)

    def _consume(
        self, topic: str, expected: int, watch: Stopwatch, ack_every: int, arguments: dict[str, str]
    ) -> list[bytes]:
        session = Session(self._port)

        def done() -> None:
            watch.end()
            session.done()

        consuming = Consuming(topic, expected, ack_every, done)

        def begin(channel: Any) -> None:
            watch.begin()
            consuming.begin(channel, arguments)

        session.run(begin)
        return consuming.received

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        confirms = ["--confirm", str(WINDOW), "--flag", "persistent", "--size", str(record_bytes)]
        options = ["--producers", "1", "--consumers", "0", "--pmessages", str(count), *confirms]
        return self._perf_test("sending", topic, *options)

    def tool_read(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        acks = ["--qos", str(WINDOW), "--multi-ack-every", str(CHUNK)]
        place = ["--consumer-args", "x-stream-offset=first"]
        options = ["--producers", "0", "--consumers", "1", "--cmessages", str(count), *acks, *place]
        return self._perf_test("receiving", topic, *options)

    def _perf_test(self, direction: str, topic: str, *options: str) -> ToolRun:
        place = ["--uri", f"amqp://127.0.0.1:{self._port}", "--predeclared", "--queue", topic]
        limit = ["--time", str(TOOL_SECONDS_MAX)]
        command = [java(), "-cp", self._jars, "com.rabbitmq.perf.PerfTest", *place, *limit, *options]
        text, seconds, cpu_s = run_tool(command)
        if seconds >= TOOL_SECONDS_MAX:  # It says no count; where it ran out of time it did not do all.
            raise ToolFailed(f"PerfTest did not do its work within {TOOL_SECONDS_MAX} s")
        return ToolRun(tool_output.perf_test(text, direction), seconds, cpu_s)


CALLS = f"`channel.basic_publish` of pika's SelectConnection, publisher confirms, {WINDOW:,} unconfirmed"


class RabbitPeer:
    """The distribution's package; PerfTest from Maven Central."""

    facts = Facts(
        name="RabbitMQ",
        client=f"pika {pika.__version__}, and for streams in bulk rstream {version('rstream')} (Python)",
        settings={
            "page cache": "persistent messages; queues classic version 2, streams",
            "fsync": "persistent messages; quorum queues of one member, whose log is synced before a confirmation",
        },
        calls={
            "publish one at a time": "`channel.basic_publish` of pika's BlockingConnection, publisher confirms",
            "publish to a queue, a call per record": CALLS,
            "consume a queue, an ack per record": f"callback, `basic_ack` of each; prefetch {WINDOW:,}",
            "publish to a stream, a call per record": CALLS,
            "read a stream, record by record": f"callback, prefetch {WINDOW:,}; `basic_ack` of {CHUNK:,}, its credit",
            "consume a queue in bulk": f"callback, prefetch {WINDOW:,}; one `basic_ack` of {CHUNK:,}",
            "publish to a stream in bulk": f"rstream's `await producer.send_batch` of {CHUNK:,}, its confirmations",
            "read a stream in bulk": "rstream's callback for each record of a delivered chunk: it has no call for many",
            "publish to a stream, by load tool": f"PerfTest (Java): `--confirm {WINDOW}`",
            "read a stream, by load tool": f"PerfTest (Java): `--qos {WINDOW} --multi-ack-every {CHUNK}`",
        },
        lacks={
            "publish to a queue in bulk": "AMQP 0.9.1 publishes messages one by one",
            "publish to a stream in transactions": "streams have none",
        },
        notes=(
            "The broker uses several cores.",
            "Streams are published to and read in bulk over RabbitMQ's own protocol for them, and otherwise over AMQP "
            "0.9.1, like queues. The load tool of that protocol is not on Maven Central: PerfTest speaks AMQP 0.9.1.",
            "The distribution's version is older than the current one.",
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
        port, stream_port, distribution, names = free_ports(4)
        environment = _environment(folder, port, distribution, names)
        (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (folder / "rabbitmq.conf").write_text(CONFIG.format(port=port, stream_port=stream_port))
        with running([program("epmd", INSTALL)], folder, names, environment):
            with running([str(SERVER)], folder, port, environment) as pid:
                server = RabbitServer(port, stream_port, pid, self._jars, durability)
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
