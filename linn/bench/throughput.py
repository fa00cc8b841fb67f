"""A quick load generator. `make bench` is the one whose ratios count; this one looks at a broker that is there."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from functools import partial

import anyio

from linn.cli.render.progress import Advance, progress
from linn.cli.render.table import number, print_table
from linn.cli.session import with_client
from linn.client.client import Client

SILENCE_S = 10.0
"""When nothing comes for so long, the topic is taken to hold no more."""


@dataclass
class Measured:
    """What a run came to."""

    what: str
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    calls_ms: list[float] = field(default_factory=list)
    """What each call took until its confirmation."""

    def data(self) -> dict[str, float | int | str]:
        """For `--json`."""
        seconds = self.seconds or 1e-9
        data: dict[str, float | int | str] = {
            "what": self.what,
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "messages_per_s": round(self.messages / seconds),
            "bytes_per_s": round(self.bytes / seconds),
        }
        if self.calls_ms:
            ordered = sorted(self.calls_ms)
            data["call_p50_ms"] = round(ordered[len(ordered) // 2], 3)
            data["call_p99_ms"] = round(ordered[len(ordered) * 99 // 100], 3)
        return data


def bench_publish(url: str, topic: str, *, count: int, size: int, batch: int, as_json: bool) -> None:
    """Publish, print the rates. Raises LinnError."""
    measured = Measured(f"publish to {topic}")
    with progress(measured.what, count) as advance:
        with_client(url, partial(_publish, topic, count, size, batch, measured, advance))
    _show(measured, as_json)


async def _publish(
    topic: str, count: int, size: int, batch: int, measured: Measured, advance: Advance, client: Client
) -> None:
    values = [os.urandom(size) for _ in range(min(batch, count))]
    async with client.producer(topic=topic) as producer:
        started = time.perf_counter()
        while measured.messages < count:
            part = values[: count - measured.messages]
            before = time.perf_counter()
            await producer.publish_many(part)
            measured.calls_ms.append((time.perf_counter() - before) * 1000)
            measured.messages += len(part)
            advance(len(part))
        measured.seconds = time.perf_counter() - started
    measured.bytes = measured.messages * size


def bench_consume(url: str, topic: str, *, count: int, as_json: bool) -> None:
    """Consume, print the rates. Raises LinnError."""
    measured = Measured(f"consume from {topic}")
    with progress(measured.what, count) as advance:
        with_client(url, partial(_consume, topic, count, measured, advance))
    _show(measured, as_json)


async def _consume(topic: str, count: int, measured: Measured, advance: Advance, client: Client) -> None:
    async with client.consumer(topic) as consumer:
        batches = aiter(consumer.batches())
        started = time.perf_counter()
        while measured.messages < count:
            batch = None
            with anyio.move_on_after(SILENCE_S):
                batch = await anext(batches, None)
            if batch is None:
                break
            measured.messages += len(batch)
            measured.bytes += len(batch.records.message)
            batch.ack()
            advance(len(batch))
            measured.seconds = time.perf_counter() - started


def _show(measured: Measured, as_json: bool) -> None:
    data = measured.data()
    if as_json:
        print(json.dumps(data))
        return
    rows = [
        [name.replace("_per_s", " per second").replace("_", " "), f"{value:,}"]
        for name, value in data.items()
        if name != "what"
    ]
    print_table(["", number("")], rows, measured.what)
