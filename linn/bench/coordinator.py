"""A load of many producers, each with its own connection: what share of it a broker takes, and what is full first.

Laws: it ends in bounded time, and leaves no process and no topic behind, however it ends. The processes of the load end
with this one, also where this one is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from linn.bench.saturation import (
    METRICS,
    NOTHING,
    REACHED,
    TEXTS,
    WAITING,
    Sample,
    broker_use,
    disk_waited_s,
    first_full,
    machine_busy_s,
    shares,
)
from linn.bench.temporary_topic import temporary_topic
from linn.bench.worker import CONNECT_S, LAST_ANSWERS_S, Plan, bound_ms
from linn.cli.doctor.machine import file_limits, memory_bytes
from linn.cli.exit_code import told_when_interrupted
from linn.cli.render.console import console
from linn.cli.render.progress import Advance, progress
from linn.cli.render.table import number, print_table
from linn.cli.session import broker_address, with_client
from linn.client.client import Client
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError, RequestTimeout

SETTINGS: Mapping[str, Any] = {"kind": "stream", "retention_bytes": 1 << 30}
"""Of the topic: what is stored goes again, so that the load is not ended by a disk that is full."""
OTHER_FILES = 64
_LINE_BYTES_MAX = 1 << 20
SAMPLE_S = 1.0
BUSY_S = 10.0
"""How long the broker may take to say what it uses, before and after the load."""
_START_S = 30.0
"""How long the processes of the load may take to start, beside connecting."""
_STOP_S = 2.0
"""How long a process of a load that is interrupted may take to say what it came to."""
_SHARES = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999, "max": 1.0}


class LoadFailed(LinnError):
    """The load could not be put up, or one of its processes ended by itself."""

    code = "bench.load_failed"


class _Process:
    """One process of the load."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self.process = process
        self.processor_s = 0.0
        self.confirmed = 0
        self.result: dict[str, Any] | None = None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(line + b"\n")

    async def hear(self) -> dict[str, Any]:
        """The next thing that it says. Raises LoadFailed."""
        try:
            said: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", _LINE_BYTES_MAX))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            raise LoadFailed(f"a process of the load ended with {await self.process.wait()}") from None
        if "error" in said:
            raise LoadFailed(f"the producers can't connect: {said['error']}")
        return said

    async def stop(self) -> None:
        """Have it publish no more, and hear what it came to, where it says so in time."""
        assert self.process.stdin is not None
        with anyio.move_on_after(_STOP_S, shield=True), contextlib.suppress(LoadFailed):
            await self.process.stdin.aclose()
            while self.result is None:
                self.result = (await self.hear()).get("result")

    async def end(self) -> None:
        """SIGKILL, by process id, and wait for the end."""
        with anyio.CancelScope(shield=True):
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
            await self.process.aclose()


class Fleet:
    """`linn bench soak --producers`."""

    def __init__(
        self,
        *,
        producers: int,
        processes: int | None,
        rate: float,
        size: int,
        linger_s: float,
        duration_s: float,
        settings: Mapping[str, Any],
    ) -> None:
        """`processes`: None for one per processor, but for the broker's. `rate`: records a second of each producer.

        `settings`: of the stream, which is made for this and deleted.
        """
        self._producers = producers
        self._count = min(processes or max(1, (os.cpu_count() or 1) - 1), producers)
        self._rate = rate
        self._size = size
        self._linger_s = linger_s
        self._duration_s = duration_s
        self._settings = {**SETTINGS, **settings}
        self._is_here = False
        """Whether the broker is on this machine."""
        self._processes: list[_Process] = []
        self._heard: list[Sample] = []
        """What the broker said."""
        self._seen: list[Sample] = []
        """What the machine says, for as long as the broker says nothing."""

    def run(self, url: str, *, as_json: bool) -> bool:
        """Load, print; whether anything was confirmed and nothing failed. Raises LinnError where it can't begin."""
        self._check_descriptors()
        address = broker_address(url)
        self._is_here = address.startswith(("unix:", "127.", "[::1]", "localhost:"))
        with (
            told_when_interrupted(partial(self._tell_so_far, as_json)),
            progress(counted(self._producers, "producer"), round(self._target(self._duration_s))) as advance,
        ):
            with_client(url, partial(self._work, advance, address))
        data = self._data(self._duration_s)
        _tell(data, as_json)
        return is_well(data)

    def _tell_so_far(self, as_json: bool) -> None:
        results = [process.result for process in self._processes if process.result is not None]
        if results and self._heard:
            _tell(self._data(max(result["seconds"] for result in results)), as_json, "interrupted: ")

    def _target(self, seconds: float) -> float:
        return self._producers * self._rate * seconds

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

    async def _work(self, advance: Advance, address: str, client: Client) -> None:
        await self._check_broker(client)
        async with temporary_topic(client, "bench-soak", self._settings) as topic, AsyncExitStack() as stack:
            with anyio.fail_after(CONNECT_S + _START_S):
                async with anyio.create_task_group() as starting:
                    for number in range(self._count):
                        starting.start_soon(self._start, self._plan(address, topic, number), stack)
            with anyio.fail_after(self._duration_s + LAST_ANSWERS_S + 3 * BUSY_S):
                self._heard.append(self._sample(broker_use(await client.admin.metrics(*METRICS))))
                async with anyio.create_task_group() as running:
                    running.start_soon(self._watch_broker, client)
                    running.start_soon(self._watch_machine)
                    async with anyio.create_task_group() as driving:
                        for process in self._processes:
                            driving.start_soon(self._drive, process, advance)
                    if len(self._heard) < 2:
                        self._heard.append(self._sample(broker_use(await client.admin.metrics(*METRICS))))
                    running.cancel_scope.cancel()

    def _plan(self, address: str, topic: str, number: int) -> Plan:
        count = self._producers // self._count + (number < self._producers % self._count)
        # A source address has some 28,000 ports for one destination; on loopback there are more addresses.
        source = f"127.0.1.{number + 1}" if address.startswith("127.") else None
        return Plan(address, topic, count, self._rate, self._size, self._linger_s, self._duration_s, source)

    async def _start(self, plan: Plan, stack: AsyncExitStack) -> None:
        """Start a process; it is connected when this returns, and ends with the stack."""
        command = [sys.executable, "-m", "linn.bench.worker"]
        # A session of its own: Ctrl-C is for this process, which ends the others.
        process = _Process(await anyio.open_process(command, stderr=None, start_new_session=True))
        stack.push_async_callback(process.end)
        await process.say(msgspec.json.encode(plan))
        await process.hear()
        self._processes.append(process)

    async def _drive(self, process: _Process, advance: Advance) -> None:
        await process.say(b"go")
        try:
            while process.result is None:
                said = await process.hear()
                counted = said.get("sample") or said["result"]
                advance(counted["confirmed"] - process.confirmed)
                process.confirmed, process.processor_s = counted["confirmed"], counted["processor_s"]
                process.result = said.get("result")
        except anyio.get_cancelled_exc_class():
            await process.stop()
            raise

    async def _watch_broker(self, client: Client) -> None:
        """Ask it what it uses, again and again; one that is busy answers late, or not in time."""
        while True:
            with contextlib.suppress(RequestTimeout):
                self._heard.append(self._sample(broker_use(await client.admin.metrics(*METRICS))))
            await anyio.sleep(SAMPLE_S)

    async def _watch_machine(self) -> None:
        while True:
            self._seen.append(self._sample({}))
            await anyio.sleep(SAMPLE_S)

    def _sample(self, broker: Mapping[str, float]) -> Sample:
        busiest = max(process.processor_s for process in self._processes)
        here = (machine_busy_s(), disk_waited_s()) if self._is_here else (None, None)
        return Sample(anyio.current_time(), broker, busiest, *here)

    # --- what it came to ---

    def _data(self, seconds: float) -> dict[str, Any]:
        results = [process.result for process in self._processes if process.result is not None]
        total = {key: sum(result[key] for result in results) for key in ("confirmed", "publishes", "blocked", "lost")}
        errors: Counter[str] = Counter()
        for result in results:
            errors.update(result["errors"])
        share = total["confirmed"] / (self._target(seconds) or 1e-9)
        memory = memory_bytes() if self._is_here else None
        full = first_full((self._heard, self._seen), memory)
        return {
            "producers": self._producers,
            "processes": self._count,
            "seconds": round(seconds, 3),
            "target_per_s": round(self._producers * self._rate),
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
            "in_use": shares(self._heard[0], self._heard[-1], memory),
            "full_first": full[0] if full is not None and share < REACHED else None,
            "full_after_s": full[1] if full is not None and share < REACHED else None,
        }


def _round_trips(results: list[dict[str, Any]]) -> dict[str, float | None]:
    counted: Counter[int] = Counter()
    for result in results:
        counted.update({int(number): count for number, count in result["round_trips"].items()})
    total, seen = sum(counted.values()), 0
    found: dict[str, float | None] = dict.fromkeys(_SHARES)
    for value, count in sorted(counted.items()):
        seen += count
        for name, share in _SHARES.items():
            if found[name] is None and seen >= share * total:
                found[name] = round(bound_ms(value), 3)
    return found


def verdict(data: Mapping[str, Any]) -> str:
    """In words, what was full first."""
    if data["share"] >= REACHED:
        return NOTHING
    if data["full_first"] is None:
        return WAITING
    return f"{TEXTS[data['full_first']]} (after {data['full_after_s']:g} s)"


def is_well(data: Mapping[str, Any]) -> bool:
    """Whether anything was confirmed and nothing failed, in the figures of a run."""
    return data["confirmed"] > 0 and not data["errors"] and not data["lost_connections"]


def _tell(data: Mapping[str, Any], as_json: bool, before: str = "") -> None:
    if as_json:
        print(json.dumps(data))
    else:
        _show(data, before)


def _show(data: Mapping[str, Any], before: str) -> None:
    reached = f"{data['share']:.1%} of {data['target_per_s']:,} records per second"
    title = before + (reached if data["confirmed"] else "nothing was confirmed")
    rows = []
    for name in ("producers", "processes", "seconds", "confirmed", "confirmed_per_s", "bytes_per_s"):
        rows.append([name.replace("_per_s", " per second"), f"{data[name]:,}"])
    for name in ("records_per_publish", "sends_blocked", "lost_connections", "unanswered"):
        rows.append([name.replace("_", " "), f"{data[name]:,}"])
    rows.append(["errors", ", ".join(f"{count} {code}" for code, count in data["errors"].items()) or "none"])
    for name, took_ms in data["confirmed_ms"].items():
        rows.append([f"confirmed after, {name}", "" if took_ms is None else f"{took_ms:,.1f} ms"])
    for name, share in data["in_use"].items():
        rows.append([f"in use, {name.replace('_', ' ')}", "not known" if share is None else f"{share:.0%}"])
    print_table(["", number("")], rows, title)
    console().print(f"full first: {verdict(data)}", soft_wrap=True)
