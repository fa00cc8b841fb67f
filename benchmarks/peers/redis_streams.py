"""Redis Streams, driven by redis-py with hiredis, and redis-benchmark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from benchmarks.peers import tool_output
from benchmarks.peers.cargo import Supply, Tally
from benchmarks.peers.peer import Durability, Facts, Kind, PeerFailed
from benchmarks.peers.server_process import free_ports, program, running, until_answered
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun, run_tool

INSTALL = "apt-get install redis-server (and stop and disable the service that it starts)"
CHUNK = 1_000
TOOL_PIPELINE = 100
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

    def publish_singly(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> list[float]:
        taken: list[float] = []
        with watch:
            for value in supply.singles():
                started = time.perf_counter()
                self._client.xadd(topic, {"v": value})
                taken.append(time.perf_counter() - started)
        return taken

    def publish_batched(self, topic: str, kind: Kind, supply: Supply, watch: Stopwatch) -> None:
        with watch:
            for values in supply.chunks(CHUNK):
                pipeline = self._client.pipeline(transaction=False)
                for value in values:
                    pipeline.xadd(topic, {"v": value})
                pipeline.execute()

    def read(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        place: bytes | str = "0"
        with watch:
            while not tally.is_full:
                entries = _entries(self._client.xread({topic: place}, count=CHUNK))
                place = entries[-1][0]
                tally.add([fields[b"v"] for _, fields in entries])

    def work(self, topic: str, tally: Tally, watch: Stopwatch) -> None:
        with watch:
            while not tally.is_full:
                entries = _entries(self._client.xreadgroup(GROUP, "one", {topic: ">"}, count=CHUNK))
                tally.add([fields[b"v"] for _, fields in entries])
                acked = self._client.xack(topic, GROUP, *(entry for entry, _ in entries))
                if acked != len(entries):
                    raise PeerFailed(f"Redis took {acked} of {len(entries)} acks")

    def tool_publish(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        options = ["-p", str(self._port), "-n", str(count), "-c", "1", "-P", str(TOOL_PIPELINE), "--csv"]
        record = "v" * record_bytes
        text, seconds, cpu_s = run_tool(
            [program("redis-benchmark", INSTALL), *options, "XADD", topic, "*", "v", record]
        )
        return ToolRun(tool_output.redis_benchmark(text), seconds, cpu_s)

    def tool_consume(self, topic: str, record_bytes: int, count: int) -> ToolRun | None:
        return None


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Of the one stream that was asked for, in the old protocol's form or the new one's."""
    if not answer:
        raise PeerFailed("Redis has no more entries")
    if isinstance(answer, dict):
        (found,) = answer.values()
        return [entry for part in found for entry in part]
    ((_, entries),) = answer
    return list(entries)


class RedisPeer:
    """From Debian's package."""

    tool_kind: Kind = "stream"
    warm_up_s = 0.0
    facts = Facts(
        name="Redis Streams",
        client=f"redis-py {redis.__version__} with hiredis (Python, its parser C)",
        tool=f"redis-benchmark (C): XADD, pipelines of {TOOL_PIPELINE}; it has no consumer of streams",
        settings={
            "page cache": "appendonly yes, appendfsync no",
            "fsync": "appendonly yes, appendfsync always",
        },
        queue=f"XREADGROUP of {CHUNK:,} and one XACK for them, each waiting for the other; what is acked stays",
        batched=f"pipelines of {CHUNK:,} XADD, each answered before the next",
        notes=(
            "All records are kept in memory; the append-only file is written beside it.",
            "Commands run on one thread. redis-benchmark sends records of one repeated byte.",
        ),
    )

    def check(self) -> None:
        """The server and its tool."""
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
