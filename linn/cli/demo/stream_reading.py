"""Reading of a stream from start to end, with digests by which two readings are compared."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import anyio
import msgspec

from linn.cli.demo.flights import Flight
from linn.cli.demo.progress import Stretch
from linn.cli.demo.tally import Count, Tally
from linn.client.client import Client
from linn.client.consume.message import Batch
from linn.core.errors.tree import RequestTimeout

SILENCE_S = 20.0
"""Time without a message after which the broker counts as stuck."""

_decode = msgspec.json.Decoder(Flight).decode


@dataclass
class Reading:
    """Result of reading a stream."""

    digests: dict[int, hashlib.blake2b] = field(default_factory=dict)
    """Digests by partition over offset, key and value of each record in order."""
    tally: Tally = field(default_factory=Tally)
    last_by_carrier: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Partition and number of the latest flight by carrier."""
    out_of_order: int = 0
    """Number of flights that arrived after a later one of their carrier, or from another partition."""

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        digest = self.digests.setdefault(batch.partition, hashlib.blake2b())
        for message in batch:
            value, key = message.value or b"", message.key or b""
            digest.update(b"%d %d %b " % (message.offset, len(value), key))
            digest.update(value)
            self._enter(batch.partition, _decode(value))

    def _enter(self, partition: int, flight: Flight) -> None:
        self.tally.add_event(flight)
        last = self.last_by_carrier.get(flight.carrier)
        if last is not None and (last[0] != partition or last[1] >= flight.number):
            self.out_of_order += 1
        self.last_by_carrier[flight.carrier] = partition, flight.number

    def same_as(self, other: Reading) -> list[Count]:
        """Compare with another reading: per partition, 1 if both have the same bytes in the same order."""
        return [
            Count(
                f"stream: partition {partition} read twice the same",
                1,
                int(self._hex(partition) == other._hex(partition)),
            )
            for partition in sorted({*self.digests, *other.digests})
        ]

    def _hex(self, partition: int) -> str:
        digest = self.digests.get(partition)
        return digest.hexdigest() if digest is not None else ""


async def read_stream(client: Client, topic: str, stretch: Stretch, group: str | None = None) -> Reading:
    """Read all messages that the topic holds now. `group`: needed for a topic that is a queue as well.

    Raises:
        RequestTimeout: the broker stopped delivering before the end. LinnError.
    """
    reading = Reading()
    described = await client.admin.topic(topic)
    left = {index: partition["end"] for index, partition in enumerate(described["partitions"]) if partition["end"]}
    stretch.expected += sum(left.values())
    stretch.start()
    async with client.consumer(topic, group=group) as consumer:
        batches = aiter(consumer.batches())
        while left:
            batch: Batch | None = None
            with anyio.move_on_after(SILENCE_S):
                batch = await anext(batches, None)
            if batch is None:
                raise RequestTimeout(f"nothing came from {topic} for {SILENCE_S:g} s; still to be read: {left}")
            reading.add(batch)
            stretch.done += len(batch)
            if batch.end_offset >= left.get(batch.partition, 0):
                left.pop(batch.partition, None)
    stretch.end()
    return reading
