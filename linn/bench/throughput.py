"""Throughput of one client: confirmed calls of a producer, or batches of a consumer.

`make bench` measures ratios to a bare server; this measures a broker that is running already.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from linn.client.client import Client

SILENCE_S = 10.0
"""Time without a message after which the topic counts as empty."""


@dataclass
class Throughput:
    """Counts and times of a run."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    calls_ms: list[float] = field(default_factory=list)
    """Time from each call to its confirmation."""

    def data(self) -> dict[str, float | int]:
        """Return the document for `--json`."""
        seconds = self.seconds or 1e-9
        data: dict[str, float | int] = {
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


async def measure_publish(
    client: Client,
    topic: str,
    measured: Throughput,
    *,
    count: int,
    size: int,
    batch: int,
    advance: Callable[[int], None],
) -> None:
    """Publish `count` random messages in confirmed calls of `batch`; `measured` grows with each. Raises LinnError."""
    values = [os.urandom(size) for _ in range(min(batch, count))]
    async with client.producer(topic=topic) as producer:
        started = time.perf_counter()
        while measured.messages < count:
            part = values[: count - measured.messages]
            before = time.perf_counter()
            await (producer.publish(part[0]) if batch == 1 else producer.publish_many(part))
            now = time.perf_counter()
            measured.calls_ms.append((now - before) * 1000)
            measured.messages += len(part)
            measured.bytes += len(part) * size
            measured.seconds = now - started
            advance(len(part))


async def measure_consume(
    client: Client, topic: str, measured: Throughput, *, count: int, advance: Callable[[int], None]
) -> None:
    """Consume and ack up to `count` messages; `measured` grows with each batch. Raises LinnError."""
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
