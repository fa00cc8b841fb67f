"""A long load that checks what comes back: nothing that was confirmed is lost or changed, whatever breaks meanwhile.

Laws: memory is bounded by what is under way and by the number of gaps in what has arrived; the run has an end. A
publish whose connection broke may be stored or not: it counts as unknown, and is neither missed nor counted as extra.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio

from linn.cli.exit_code import told_when_interrupted
from linn.cli.pace import Pace
from linn.cli.progress import Advance, progress
from linn.cli.session import with_client
from linn.cli.table import number, print_table
from linn.cli.temporary_topic import temporary_topic
from linn.client.client import Client
from linn.client.consume.message import Batch
from linn.client.produce.producer import Producer
from linn.core.errors.tree import LinnError
from linn.core.queue.offset_ranges import OffsetRanges

SILENCE_S = 30.0
"""After the load: when nothing has come for so long, what is missing is lost. A broker may restart meanwhile."""
SIZE_MIN = 12
_HEAD = struct.Struct("<QI")
_BATCH_MAX = 5_000
_RETRY_S = 0.5


class Soak:
    """`linn bench soak`."""

    def __init__(
        self, *, duration_s: float, rate: float | None, size: int, consumers: int, settings: Mapping[str, Any]
    ) -> None:
        """`rate`: messages a second at most. `settings`: of the queue, which is made for this and deleted."""
        self._duration_s = duration_s
        self._pace = Pace(rate)
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

    def run(self, url: str, *, as_json: bool) -> bool:
        """Load, check, print; whether all is well. Raises LinnError where it can't begin."""
        with (
            told_when_interrupted(partial(self._tell_so_far, as_json)),
            progress(f"soaking for {self._duration_s:g} s", None) as advance,
        ):
            with_client(url, partial(self._work, advance))
        data = self._data()
        _tell(data, as_json)
        return bool(data["ok"])

    def _tell_so_far(self, as_json: bool) -> None:
        """What has not arrived yet might have: it is not said to be lost, and whether all is well is not said."""
        if self._published:
            data = self._data()
            _tell({name: value for name, value in data.items() if name not in ("lost", "ok")}, as_json)

    async def _work(self, advance: Advance, client: Client) -> None:
        async with temporary_topic(client, "bench-soak", self._settings) as topic:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._consumers):
                    tasks.start_soon(self._consume, client, topic)
                await self._publish(client, topic, advance)
                await self._until_silent()
                tasks.cancel_scope.cancel()

    # --- out ---

    async def _publish(self, client: Client, topic: str, advance: Advance) -> None:
        began = anyio.current_time()
        try:
            while anyio.current_time() < began + self._duration_s:
                await self._publish_until(began + self._duration_s, client, topic, advance)
        finally:
            self._seconds = anyio.current_time() - began

    async def _publish_until(self, end: float, client: Client, topic: str, advance: Advance) -> None:
        """Or until something fails: then after a while it is tried again."""
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

    # --- in ---

    async def _consume(self, client: Client, topic: str) -> None:
        while True:
            try:
                async with client.consumer(topic) as consumer:
                    async for batch in consumer.batches():
                        self._take(batch)
                        batch.ack()
            except LinnError as error:
                # A settlement that came too late, or a broker that is away: what was not settled comes again.
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

    # --- what it came to ---

    def _data(self) -> dict[str, Any]:
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


def _tell(data: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(data))
    else:
        _show(data)


def _verdict(data: Mapping[str, Any]) -> str:
    if "ok" not in data:
        return "interrupted"
    if data["ok"]:
        return "nothing was lost"
    return "NOT WELL" if data["confirmed"] else "nothing was confirmed"


def _show(data: Mapping[str, Any]) -> None:
    rows = []
    for name, value in data.items():
        if name == "errors":
            value = ", ".join(f"{count} {code}" for code, count in value.items()) or "none"
        if name != "ok":
            rows.append([name.replace("_per_s", " per second"), f"{value:,}" if isinstance(value, int) else str(value)])
    print_table(["", number("")], rows, _verdict(data))
