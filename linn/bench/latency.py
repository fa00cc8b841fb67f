"""Latency of single messages: to the confirmation, and to a consumer on the same connection."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from linn.bench.pace import Pace
from linn.bench.temporary_topic import temporary_topic
from linn.client.client import Client

SIZE_MIN = 8
"""Smallest message: its number, by which the consumer identifies it."""
DELIVERY_S = 10.0
"""Time limit for the delivery of the last message."""
_NUMBER = struct.Struct("<Q")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}


def percentiles(took_ms: Sequence[float]) -> dict[str, float | None]:
    """Return percentiles by name; None where nothing was measured."""
    if not took_ms:
        return dict.fromkeys(PERCENTILES)
    ordered = sorted(took_ms)
    return {
        name: round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3) for name, share in PERCENTILES.items()
    }


class LatencyTest:
    """Latency test, with one message in flight at a time."""

    def __init__(self, *, count: int, size: int, rate_per_s: float | None, settings: Mapping[str, Any]) -> None:
        """`rate_per_s`: maximum rate. `settings`: of the temporary topic."""
        self._count = count
        self._padding = os.urandom(max(0, size - SIZE_MIN))
        self._rate_per_s = rate_per_s
        self._settings = settings
        self._sent_at: list[float] = []
        self._confirmed_ms: list[float] = []
        self._delivered_ms: list[float] = []
        self._seconds = 0.0

    async def run(self, client: Client, advance: Callable[[int], None]) -> None:
        """Measure in a temporary topic. Raises LinnError."""
        async with temporary_topic(client, "bench-latency", self._settings) as topic:
            async with anyio.create_task_group() as tasks:
                subscribed = anyio.Event()
                tasks.start_soon(self._consume, client, topic, subscribed)
                await subscribed.wait()
                await self._publish(client, topic, advance)
                # The consumer ends with the last message, which may never arrive.
                tasks.cancel_scope.deadline = anyio.current_time() + DELIVERY_S

    async def _publish(self, client: Client, topic: str, advance: Callable[[int], None]) -> None:
        pace = Pace(self._rate_per_s)
        began = anyio.current_time()
        async with client.producer(topic=topic) as producer:
            for number in range(self._count):
                await pace.room(1)
                before = anyio.current_time()
                self._sent_at.append(before)
                await producer.publish(_NUMBER.pack(number) + self._padding)
                now = anyio.current_time()
                self._confirmed_ms.append((now - before) * 1000)
                self._seconds = now - began
                advance(1)

    async def _consume(self, client: Client, topic: str, subscribed: anyio.Event) -> None:
        async with client.consumer(topic) as consumer:
            subscribed.set()
            async for batch in consumer.batches():
                now = anyio.current_time()
                for value in batch.values:
                    (number,) = _NUMBER.unpack_from(value or b"")
                    self._delivered_ms.append((now - self._sent_at[number]) * 1000)
                batch.ack()
                if len(self._delivered_ms) >= self._count:
                    return

    def data(self) -> dict[str, Any]:
        """Return the document for `--json`: for the whole test, or for the part before an interruption."""
        return {
            "messages": len(self._confirmed_ms),
            "delivered": len(self._delivered_ms),
            "seconds": round(self._seconds, 6),
            "confirmed_ms": percentiles(self._confirmed_ms),
            "delivered_ms": percentiles(self._delivered_ms),
        }
