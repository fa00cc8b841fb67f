"""Redis Streams, driven by redis-py with hiredis, and redis-benchmark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from benchmarks.peers import tool_output
from benchmarks.peers.cargo import Supply
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.plan import CHUNK, WINDOW
from benchmarks.peers.server_process import free_ports, program, running, until_answered, values_of
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool

INSTALL = "apt-get install redis-server (and stop and disable the service that it starts)"
GROUP = "workers"
FSYNC = {"page cache": "no", "fsync": "always"}


class RedisServer:
    """A server with an append-only file; a topic is a key."""

    def __init__(self, port: int, pid: int) -> None:
        self.pids = [pid]
        self._port = port
        self._client: Any = redis.Redis(port=port)
        self.version = str(until_answered(self._client.info, redis.ConnectionError, "Redis")["redis_version"])

    def create(self, topic: str, kind: Kind) -> None:
        if kind == "queue":
            self._client.xgroup_create(topic, GROUP, id="0", mkstream=True)

    def delete(self, topic: str) -> None:
        self._client.unlink(topic)

    def publish_one_at_a_time(self, topic: str, supply: Supply, watch: Stopwatch) -> list[float]:
        with watch:
            times = [time.perf_counter()]
            for value in supply.singles():
                self._client.xadd(topic, {"v": value})
                times.append(time.perf_counter())
        return times

    def publish_calls(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        pipeline = self._client.pipeline(transaction=False)
        with watch:
            for values in supply.chunks(CHUNK):
                for value in values:
                    pipeline.xadd(topic, {"v": value})
                pipeline.execute()

    def publish_bulk(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        connection = self._client.connection_pool.get_connection()
        try:
            with watch:
                for values in supply.chunks(CHUNK):
                    commands = [("XADD", topic, "*", "v", value) for value in values]
                    connection.send_packed_command(connection.pack_commands(commands))
                    for _ in values:
                        connection.read_response()
        finally:
            self._client.connection_pool.release(connection)

    def work_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        with watch:
            while len(received) < expected:
                pipeline = self._client.pipeline(transaction=False)
                for entry, fields in _entries(self._client.xreadgroup(GROUP, "one", {topic: ">"}, count=CHUNK)):
                    received.append(fields[b"v"])
                    pipeline.xack(topic, GROUP, entry)
                pipeline.execute()
        return values_of(received)

    def work_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        with watch:
            while len(received) < expected:
                entries = _entries(self._client.xreadgroup(GROUP, "one", {topic: ">"}, count=CHUNK))
                received.extend([fields[b"v"] for _, fields in entries])
                acked = self._client.xack(topic, GROUP, *(entry for entry, _ in entries))
                if acked != len(entries):
                    raise PeerFailed(f"Redis took {acked} of {len(entries)} acks")
        return values_of(received)

    def read_records(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        place: bytes | str = "0"
        with watch:
            while len(received) < expected:
                for entry, fields in _entries(self._client.xread({topic: place}, count=CHUNK)):
                    received.append(fields[b"v"])
                    place = entry
        return values_of(received)

    def read_bulk(self, topic: str, expected: int, watch: Stopwatch) -> list[bytes]:
        received: list[Any] = []
        place: bytes | str = "0"
        with watch:
            while len(received) < expected:
                entries = _entries(self._client.xread({topic: place}, count=CHUNK))
                received.extend([fields[b"v"] for _, fields in entries])
                place = entries[-1][0]
        return values_of(received)

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        options = ["-p", str(self._port), "-n", str(count), "-c", "1", "-P", str(CHUNK), "--csv"]
        record = "v" * record_bytes
        command = [program("redis-benchmark", INSTALL), *options, "XADD", topic, "*", "v", record]
        text, seconds, cpu_s = run_tool(command)
        return ToolRun(tool_output.redis_benchmark(text), seconds, cpu_s)

    def tool_read(self, topic: str, record_bytes: int, count: int) -> ToolRun:
        raise PeerFailed("redis-benchmark reads no streams")


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of the one stream that was asked for, in the old protocol's form or the new one's."""
    if not answer:
        raise PeerFailed("Redis has no more entries")
    if isinstance(answer, dict):
        (found,) = answer.values()
        return [entry for part in found for entry in part]
    ((_, entries),) = answer
    return list(entries)


class RedisPeer:
    """The distribution's package."""

    facts = Facts(
        name="Redis Streams",
        client=f"redis-py {redis.__version__} with hiredis (Python; its parser is C)",
        settings={
            "page cache": "appendonly yes, appendfsync no",
            "fsync": "appendonly yes, appendfsync always",
        },
        calls={
            "publish one at a time": "`redis.xadd(topic, fields)`",
            "publish to a queue, a call per record": f"`pipeline.xadd(topic, fields)`, `execute` after {CHUNK:,}",
            "consume a queue, an ack per record": f"XREADGROUP of {CHUNK:,}, `pipeline.xack` of each, `execute`",
            "publish to a stream, a call per record": f"`pipeline.xadd(topic, fields)`, `execute` after {CHUNK:,}",
            "read a stream, record by record": f"a loop over the entries of each XREAD of {CHUNK:,}",
            "publish to a queue in bulk": f"`connection.pack_commands` of {CHUNK:,} XADD: what a pipeline does inside",
            "consume a queue in bulk": f"XREADGROUP of {CHUNK:,}, one XACK of them",
            "publish to a stream in bulk": f"`connection.pack_commands` of {CHUNK:,} XADD: what a pipeline does inside",
            "read a stream in bulk": f"`redis.xread` of {CHUNK:,}",
            "publish to a stream, by load tool": f"redis-benchmark (C): XADD, pipelines of {CHUNK:,}",
        },
        lacks={
            "publish to a stream in transactions": "MULTI and EXEC carry out commands together, sent at once",
            "read a stream, by load tool": "redis-benchmark reads no streams",
        },
        notes=(
            "All records are kept in memory; the append-only file is written beside it. What is acked stays.",
            f"Pipelines and reads are of {CHUNK:,}, a tenth of the window: of {WINDOW:,} they were slower in most "
            "works of a trial, and clearly faster in none.",
            "The distribution's version is older than the current one.",
            "Commands run on one thread. redis-benchmark sends records of one repeated byte.",
        ),
    )

    def check(self) -> None:
        """Find the server and its tool."""
        program("redis-server", INSTALL)
        program("redis-benchmark", INSTALL)

    @contextmanager
    def server(self, folder: Path, durability: Durability) -> Iterator[RedisServer]:
        """With an empty configuration, but for what is said here."""
        (port,) = free_ports(1)
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": FSYNC[durability],
            "auto-aof-rewrite-percentage": "0",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        with running([program("redis-server", INSTALL), *options], folder, port) as pid:
            yield RedisServer(port, pid)


PEERS = {"redis": RedisPeer()}
