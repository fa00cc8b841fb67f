"""How long one message takes: to its confirmation, and to a consumer on the same connection."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from linn.bench.pace import Pace
from linn.bench.temporary_topic import temporary_topic
from linn.cli.render.progress import Advance, progress
from linn.cli.render.table import numbers, print_table
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.errors.texts import counted

SIZE_MIN = 8
"""The bytes of a message's number, by which it is known again."""
DELIVERY_S = 10.0
"""How long the last message may take to the consumer."""
_NUMBER = struct.Struct("<Q")
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}


def percentiles(took_ms: Sequence[float]) -> dict[str, float | None]:
    """Milliseconds by share; None where nothing was measured."""
    if not took_ms:
        return dict.fromkeys(_SHARES)
    ordered = sorted(took_ms)
    return {
        name: round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3) for name, share in _SHARES.items()
    }


class Latency:
    """`linn bench latency`: one message under way at a time."""

    def __init__(self, *, count: int, size: int, rate: float | None, settings: Mapping[str, Any]) -> None:
        """`rate`: messages a second at most. `settings`: of the topic, which is made for this and deleted."""
        self._count = count
        self._padding = os.urandom(max(0, size - SIZE_MIN))
        self._rate = rate
        self._settings = settings
        self._sent_at: list[float] = []
        self._confirmed_ms: list[float] = []
        self._delivered_ms: list[float] = []
        self._seconds = 0.0

    def run(self, url: str, *, as_json: bool) -> None:
        """Measure and print. Raises LinnError."""
        with progress("measuring", self._count) as advance:
            with_client(url, partial(self._work, advance))
        data = self._data()
        if as_json:
            print(json.dumps(data))
        else:
            self._show(data)

    async def _work(self, advance: Advance, client: Client) -> None:
        async with temporary_topic(client, "bench-latency", self._settings) as topic:
            async with anyio.create_task_group() as tasks:
                subscribed = anyio.Event()
                tasks.start_soon(self._consume, client, topic, subscribed)
                await subscribed.wait()
                await self._publish(client, topic, advance)
                # The consumer ends with the last message; one that never comes is not waited for.
                tasks.cancel_scope.deadline = anyio.current_time() + DELIVERY_S

    async def _publish(self, client: Client, topic: str, advance: Advance) -> None:
        pace = Pace(self._rate)
        began = anyio.current_time()
        async with client.producer(topic=topic) as producer:
            for number in range(self._count):
                await pace.room(1)
                before = anyio.current_time()
                self._sent_at.append(before)
                await producer.publish(_NUMBER.pack(number) + self._padding)
                self._confirmed_ms.append((anyio.current_time() - before) * 1000)
                advance(1)
        self._seconds = anyio.current_time() - began

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

    def _data(self) -> dict[str, Any]:
        return {
            "messages": len(self._confirmed_ms),
            "delivered": len(self._delivered_ms),
            "seconds": round(self._seconds, 6),
            "confirmed_ms": percentiles(self._confirmed_ms),
            "delivered_ms": percentiles(self._delivered_ms),
        }

    def _show(self, data: Mapping[str, Any]) -> None:
        title = f"{counted(data['messages'], 'message')}, one at a time, in {data['seconds']:.1f} s"
        rows = []
        for what in ("confirmed", "delivered"):
            took_ms = data[f"{what}_ms"]
            rows.append([what, *("" if took_ms[name] is None else f"{took_ms[name]:,.2f}" for name in _SHARES)])
        print_table(["ms", *numbers(*_SHARES)], rows, title)
