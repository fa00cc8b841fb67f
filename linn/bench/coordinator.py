"""Load of many producers, each with its own connection: the share that a broker confirms, and the first bottleneck.

Laws: a run ends in bounded time, and leaves no process and no topic behind, however it ends. The workers end with this
process, even if it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from linn.bench.saturation import (
    METRICS,
    REACHED,
    Sample,
    broker_use,
    disk_waited_s,
    first_saturated,
    machine_busy_s,
    utilization,
)
from linn.bench.temporary_topic import temporary_topic
from linn.bench.worker import CONNECT_S, LAST_ANSWERS_S, LoadPlan, bound_ms
from linn.client.client import Client
from linn.core.env.real.file_limits import file_limits
from linn.core.env.real.process import RealProcess
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError, RequestTimeout

SETTINGS: Mapping[str, Any] = {"kind": "stream", "retention_bytes": 1 << 30}
"""Settings of the temporary topic; its retention keeps a full disk from ending the load."""
OTHER_FILES = 64
_LINE_BYTES_MAX = 1 << 20
SAMPLE_S = 1.0
BUSY_S = 10.0
"""Time limit for the broker's answers about its usage, before and after the load."""
_START_S = 30.0
"""Time limit for starting the workers, beside connecting."""
_STOP_S = 2.0
"""Time limit for the results of workers that are interrupted."""
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999, "max": 1.0}


class LoadFailed(LinnError):
    """The load could not be started, or a worker ended by itself."""

    code = "bench.load_failed"


class _Worker:
    """Worker process, and its messages."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self.process = process
        self.processor_s = 0.0
        self.confirmed = 0
        self.result: dict[str, Any] | None = None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(line + b"\n")

    async def receive(self) -> dict[str, Any]:
        """Return the next message of the worker. Raises LoadFailed."""
        try:
            message: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", _LINE_BYTES_MAX))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            raise LoadFailed(f"a process of the load ended with {await self.process.wait()}") from None
        if "error" in message:
            raise LoadFailed(f"the producers can't connect: {message['error']}")
        return message

    async def stop(self) -> None:
        """Stop publishing, and receive the result if it arrives in time."""
        assert self.process.stdin is not None
        with anyio.move_on_after(_STOP_S, shield=True), contextlib.suppress(LoadFailed):
            await self.process.stdin.aclose()
            while self.result is None:
                self.result = (await self.receive()).get("result")

    async def end(self) -> None:
        """Kill the process, and wait for its end."""
        with anyio.CancelScope(shield=True):
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
            await self.process.aclose()


class LoadCoordinator:
    """Coordinator of the workers of one load."""

    def __init__(
        self,
        address: str,
        *,
        producers: int,
        processes: int | None,
        rate_per_s: float,
        size: int,
        linger_s: float,
        duration_s: float,
        settings: Mapping[str, Any],
    ) -> None:
        """Check the limits of this process. Raises LoadFailed.

        `address`: of the broker. `processes`: number of workers; None for one per processor, minus the broker's.
        `rate_per_s`: records of each producer. `settings`: of the temporary stream.
        """
        self._address = address
        self._is_local = address.startswith(("unix:", "127.", "[::1]", "localhost:"))
        self._producers = producers
        self._count = min(processes or max(1, (os.cpu_count() or 1) - 1), producers)
        self._rate_per_s = rate_per_s
        self._size = size
        self._linger_s = linger_s
        self._duration_s = duration_s
        self._settings = {**SETTINGS, **settings}
        self._workers: list[_Worker] = []
        self._broker_samples: list[Sample] = []
        self._machine_samples: list[Sample] = []
        """Samples without the broker's usage, taken even while the broker is too busy to answer."""
        self._check_descriptors()

    @property
    def target(self) -> int:
        """Records to be published in the whole run."""
        return round(self._target(self._duration_s))

    async def _find_leader(self, client: Client, topic: str) -> None:
        """Load the broker of a cluster that leads the topic, so that nothing is passed on."""
        described = await client.describe(topic)
        leader = described.topics[0].partitions[0].leader
        addresses = {node.id: node.address for node in described.nodes}
        self._address = addresses.get(leader, self._address) if leader else self._address

    def _target(self, seconds: float) -> float:
        return self._producers * self._rate_per_s * seconds

    def _check_descriptors(self) -> None:
        wanted, limit = -(-self._producers // self._count) + OTHER_FILES, file_limits().hard
        if wanted > limit:
            raise LoadFailed(
                f"{counted(self._producers, 'connection')} with --processes {self._count}: {wanted:,} descriptors in "
                f"each, and the limit is {limit:,}: raise it (ulimit -Hn {wanted}, as root), or take more --processes"
            )

    async def _check_broker(self, client: Client) -> None:
        use = broker_use(await client.admin.metrics(*METRICS))
        left = use["descriptors_max"] - use["descriptors"]
        if left < self._producers:
            raise LoadFailed(
                f"{counted(self._producers, 'connection')}: as many descriptors, and the broker has {left:,.0f} left: "
                "raise its LimitNOFILE in systemd, or ulimit -Hn before linn serve"
            )

    async def run(self, client: Client, advance: Callable[[int], None]) -> None:
        """Load a temporary stream with all workers. Raises LinnError where it can't begin."""
        await self._check_broker(client)
        async with temporary_topic(client, "bench-soak", self._settings) as topic, AsyncExitStack() as stack:
            await self._find_leader(client, topic)
            with anyio.fail_after(CONNECT_S + _START_S):
                async with anyio.create_task_group() as starting:
                    for number in range(self._count):
                        starting.start_soon(self._start, self._plan(topic, number), stack)
            with anyio.fail_after(self._duration_s + LAST_ANSWERS_S + 3 * BUSY_S):
                self._broker_samples.append(self._sample(broker_use(await client.admin.metrics(*METRICS))))
                async with anyio.create_task_group() as running:
                    running.start_soon(self._watch_broker, client)
                    running.start_soon(self._watch_machine)
                    async with anyio.create_task_group() as loading:
                        for worker in self._workers:
                            loading.start_soon(self._load, worker, advance)
                    if len(self._broker_samples) < 2:
                        self._broker_samples.append(self._sample(broker_use(await client.admin.metrics(*METRICS))))
                    running.cancel_scope.cancel()

    def _plan(self, topic: str, number: int) -> LoadPlan:
        count = self._producers // self._count + (number < self._producers % self._count)
        address = self._address
        # A source address has some 28,000 ports for one destination; on loopback there are more addresses.
        source = f"127.0.1.{number + 1}" if address.startswith("127.") else None
        return LoadPlan(address, topic, count, self._rate_per_s, self._size, self._linger_s, self._duration_s, source)

    async def _start(self, plan: LoadPlan, stack: AsyncExitStack) -> None:
        """Start a worker; it is connected when this returns, and is ended by the stack."""
        command = [sys.executable, "-m", "linn.bench.worker"]
        # In a session of its own: Ctrl-C goes to this process only, which ends the workers.
        worker = _Worker(await anyio.open_process(command, stderr=None, start_new_session=True))
        stack.push_async_callback(worker.end)
        await worker.send(msgspec.json.encode(plan))
        await worker.receive()
        self._workers.append(worker)

    async def _load(self, worker: _Worker, advance: Callable[[int], None]) -> None:
        await worker.send(b"go")
        try:
            while worker.result is None:
                message = await worker.receive()
                counts = message.get("sample") or message["result"]
                advance(counts["confirmed"] - worker.confirmed)
                worker.confirmed, worker.processor_s = counts["confirmed"], counts["processor_s"]
                worker.result = message.get("result")
        except anyio.get_cancelled_exc_class():
            await worker.stop()
            raise

    async def _watch_broker(self, client: Client) -> None:
        """Sample the broker's usage periodically; a busy broker may answer late or not in time."""
        while True:
            with contextlib.suppress(RequestTimeout):
                self._broker_samples.append(self._sample(broker_use(await client.admin.metrics(*METRICS))))
            await anyio.sleep(SAMPLE_S)

    async def _watch_machine(self) -> None:
        while True:
            self._machine_samples.append(self._sample({}))
            await anyio.sleep(SAMPLE_S)

    def _sample(self, broker: Mapping[str, float]) -> Sample:
        busiest = max(worker.processor_s for worker in self._workers)
        here = (machine_busy_s(), disk_waited_s()) if self._is_local else (None, None)
        return Sample(anyio.current_time(), broker, busiest, *here)

    # --- the result ---

    def data(self) -> dict[str, Any]:
        """Return the document of a complete run for `--json`."""
        return self._data(self._duration_s)

    def partial_data(self) -> dict[str, Any] | None:
        """Return the document of an interrupted run; None where there is no result yet."""
        results = [worker.result for worker in self._workers if worker.result is not None]
        if not results or not self._broker_samples:
            return None
        return self._data(max(result["seconds"] for result in results))

    def _data(self, seconds: float) -> dict[str, Any]:
        results = [worker.result for worker in self._workers if worker.result is not None]
        total = {key: sum(result[key] for result in results) for key in ("confirmed", "publishes", "blocked", "lost")}
        errors: Counter[str] = Counter()
        for result in results:
            errors.update(result["errors"])
        share = total["confirmed"] / (self._target(seconds) or 1e-9)
        memory = RealProcess().memory_bytes_max() if self._is_local else None
        full = first_saturated((self._broker_samples, self._machine_samples), memory)
        return {
            "producers": self._producers,
            "processes": self._count,
            "seconds": round(seconds, 3),
            "target_per_s": round(self._producers * self._rate_per_s),
            "confirmed": total["confirmed"],
            "confirmed_per_s": round(total["confirmed"] / (seconds or 1e-9)),
            "bytes_per_s": round(total["confirmed"] * self._size / (seconds or 1e-9)),
            "share": round(share, 4),
            "records_per_publish": round(total["confirmed"] / (total["publishes"] or 1), 1),
            "sends_blocked": total["blocked"],
            "lost_connections": total["lost"],
            "unanswered": sum(result["unanswered"] for result in results),
            "errors": dict(sorted(errors.items())),
            "confirmed_ms": _round_trips(results),
            "in_use": utilization(self._broker_samples[0], self._broker_samples[-1], memory),
            "full_first": full[0] if full is not None and share < REACHED else None,
            "full_after_s": full[1] if full is not None and share < REACHED else None,
        }


def _round_trips(results: list[dict[str, Any]]) -> dict[str, float | None]:
    counted: Counter[int] = Counter()
    for result in results:
        counted.update({int(number): count for number, count in result["round_trips"].items()})
    total, seen = sum(counted.values()), 0
    found: dict[str, float | None] = dict.fromkeys(PERCENTILES)
    for value, count in sorted(counted.items()):
        seen += count
        for name, share in PERCENTILES.items():
            if found[name] is None and seen >= share * total:
                found[name] = round(bound_ms(value), 3)
    return found


def is_well(data: Mapping[str, Any]) -> bool:
    """Tell from the document of a run whether anything was confirmed and nothing failed."""
    return data["confirmed"] > 0 and not data["errors"] and not data["lost_connections"]
