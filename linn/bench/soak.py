"""Soak test: a long load that checks that no confirmed message is lost or changed, even if broker or network fail.

Laws: memory is bounded by the messages in flight and the number of gaps among arrived messages; the run has an end. A
publish whose connection was lost may be stored or not: it counts as unknown, not as lost or duplicate.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from linn.bench.pace import Pace
from linn.bench.temporary_topic import temporary_topic
from linn.client.client import Client
from linn.client.consume.message import Batch
from linn.client.produce.producer import Producer
from linn.core.errors.tree import LinnError
from linn.core.queue.offset_ranges import OffsetRanges

SILENCE_S = 30.0
"""Time without a message after the load, from which missing ones count as lost; a broker may restart within it."""
SIZE_MIN = 12
_HEAD = struct.Struct("<QI")
_BATCH_MAX = 5_000
_RETRY_S = 0.5


class SoakTest:
    """Soak test of a broker, with one producer and competing consumers."""

    def __init__(
        self, *, duration_s: float, rate_per_s: float | None, size: int, consumers: int, settings: Mapping[str, Any]
    ) -> None:
        """`rate_per_s`: maximum rate. `settings`: of the temporary queue."""
        self._duration_s = duration_s
        self._pace = Pace(rate_per_s)
        self._padding = os.urandom(max(0, size - SIZE_MIN))
        self._consumers = consumers
        self._settings = settings
        self._published = 0
        self._confirmed = OffsetRanges()
        self._arrived = OffsetRanges()
        self._delivered = 0
        self._damaged = 0
        self._errors: Counter[str] = Counter()
        self._heard_at = 0.0
        self._seconds = 0.0

    async def run(self, client: Client, advance: Callable[[int], None]) -> None:
        """Load and check a temporary queue. Raises LinnError where it can't be created."""
        async with temporary_topic(client, "bench-soak", self._settings) as topic:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._consumers):
                    tasks.start_soon(self._consume, client, topic)
                await self._publish(client, topic, advance)
                await self._until_silent()
                tasks.cancel_scope.cancel()

    # --- publishing ---

    async def _publish(self, client: Client, topic: str, advance: Callable[[int], None]) -> None:
        began = anyio.current_time()
        try:
            while anyio.current_time() < began + self._duration_s:
                await self._publish_until(began + self._duration_s, client, topic, advance)
        finally:
            self._seconds = anyio.current_time() - began

    async def _publish_until(self, end: float, client: Client, topic: str, advance: Callable[[int], None]) -> None:
        """Publish until the end or the first failure; the caller tries again."""
        try:
            async with client.producer(topic=topic) as producer:
                while anyio.current_time() < end:
                    room = await self._pace.room(_BATCH_MAX)
                    await self._publish_some(producer, room)
                    advance(room)
        except LinnError as error:
            self._errors[error.code] += 1
            await anyio.sleep(_RETRY_S)

    async def _publish_some(self, producer: Producer, count: int) -> None:
        first = self._published
        self._published += count
        await producer.publish_many([self._value(number) for number in range(first, first + count)])
        self._confirmed.add(first, first + count)

    def _value(self, number: int) -> bytes:
        return _HEAD.pack(number, self._sum(number)) + self._padding

    def _sum(self, number: int) -> int:
        return zlib.crc32(self._padding, number & 0xFFFFFFFF)

    # --- consuming ---

    async def _consume(self, client: Client, topic: str) -> None:
        while True:
            try:
                async with client.consumer(topic) as consumer:
                    async for batch in consumer.batches():
                        self._take(batch)
                        batch.ack()
            except LinnError as error:
                # A late settlement, or a broker that is away: unsettled messages are delivered again.
                self._errors[error.code] += 1
                await anyio.sleep(_RETRY_S)

    def _take(self, batch: Batch) -> None:
        self._heard_at = anyio.current_time()
        self._delivered += len(batch)
        for value in batch.values:
            if value is None or len(value) < SIZE_MIN or value[SIZE_MIN:] != self._padding:
                self._damaged += 1
                continue
            number, checksum = _HEAD.unpack_from(value)
            if number >= self._published or checksum != self._sum(number):
                self._damaged += 1
                continue
            self._arrived.add(number, number + 1)

    async def _until_silent(self) -> None:
        self._heard_at = anyio.current_time()
        while self._lost() and anyio.current_time() < self._heard_at + SILENCE_S:
            await anyio.sleep(_RETRY_S / 5)

    def _lost(self) -> int:
        return sum(end - first for piece in self._confirmed for first, end in self._arrived.gaps(*piece))

    # --- the result ---

    def data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        lost = self._lost()
        return {
            "seconds": round(self._seconds, 3),
            "published": self._published,
            "confirmed": self._confirmed.count,
            "unknown": self._published - self._confirmed.count,
            "delivered": self._delivered,
            "duplicates": self._delivered - self._damaged - self._arrived.count,
            "lost": lost,
            "damaged": self._damaged,
            "messages_per_s": round(self._confirmed.count / (self._seconds or 1e-9)),
            "errors": dict(sorted(self._errors.items())),
            "ok": not lost and not self._damaged and self._confirmed.count > 0,
        }

    def partial_data(self) -> dict[str, Any] | None:
        """Return the document of an interrupted run, without `lost` and `ok`; None if nothing was published.

        Messages that have not arrived yet may be on their way.
        """
        if not self._published:
            return None
        return {name: value for name, value in self.data().items() if name not in ("lost", "ok")}
