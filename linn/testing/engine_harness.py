"""Tools of the conformance suite of storage engines: engines and batches to work with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.env.env import Env
from linn.core.env.file_region import Sendable
from linn.core.errors.tree import ProducerDuplicate, ProducerOutOfOrder
from linn.core.log.producers import Numbered, numbers_of
from linn.core.log.storage import PartitionId, PartitionLog, StorageEngine

PARTITION = PartitionId("orders", 0)
READ_ALL = 1 << 40
HELD_BYTES_MORE = 64 << 10
"""Memory that a read may hold besides twice its result: a piece read before the size of the batches was known."""


def make_batch(count: int, *, value_bytes: int = 100, timestamp_ms: int = 1_000, fill: int = 0x61) -> RecordBatch:
    """Make an unstamped batch of `count` records with values of `value_bytes` bytes."""
    value = bytes([fill]) * value_bytes
    return build_from_records([Record(value=value, timestamp_ms=timestamp_ms)] * count, base_id=1)


@dataclass(frozen=True)
class EngineHarness:
    """Maker of engines, also of a second engine on the same files, as after a restart of the broker."""

    env: Env
    make: Callable[[Env], StorageEngine]

    @asynccontextmanager
    async def log(self, partition: PartitionId = PARTITION) -> AsyncIterator[PartitionLog]:
        """Open a log of an engine of its own, and close it at the end."""
        engine = self.make(self.env)
        log = await engine.open(partition)
        yield log
        await log.close()
        await engine.close()


def append_batches(log: PartitionLog, count: int = 12, *, first_ms: int = 1_000) -> list[bytes]:
    """Append `count` batches of 1, 2, 3, 1, … records and growing sizes, a second apart; returns their bytes."""
    messages = []
    for number in range(count):
        batch = make_batch(1 + number % 3, value_bytes=60 * number, timestamp_ms=first_ms + 1_000 * number)
        log.append(batch)
        messages.append(bytes(batch.message))
    return messages


def append_numbered(log: PartitionLog, count: int) -> None:
    """Append `count` batches of one record of producer 7, as a partition does."""
    for first in range(count):
        batch = make_batch(1, value_bytes=300)
        batch.number(7, 0, first, 0)
        offset = log.append(batch)
        log.facts.producers.stored(numbers_of(batch), offset, 0.0)


def append_in_epochs(log: PartitionLog, counts: Mapping[int, int]) -> None:
    """Append batches of one record, as many in each leader epoch as `counts` says, as a partition does."""
    for epoch, count in counts.items():
        for _ in range(count):
            log.facts.epochs.note(epoch, log.append(make_batch(1, value_bytes=300), epoch))


def known_offsets(log: PartitionLog, count: int) -> list[int | None]:
    """Return the known offset of each of the first batches of producer 7; None for an unknown batch."""
    found: list[int | None] = []
    for first in range(count):
        try:
            found.append(log.facts.producers.check(Numbered(7, 0, first, first + 1, scattered=False)))
        except (ProducerDuplicate, ProducerOutOfOrder):
            found.append(None)
    return found


def messages_of(batches: Sequence[RecordBatch]) -> list[bytes]:
    """Return the bytes of batches."""
    return [bytes(batch.message) for batch in batches]


def held_bytes(batches: Sequence[RecordBatch]) -> int:
    """Return the size of the buffers that batches keep in memory, counting each buffer once and whole."""
    buffers = {id(batch.message.obj): memoryview(batch.message.obj).nbytes for batch in batches}
    return sum(buffers.values())


async def read_through(log: PartitionLog, bytes_max: int = 4096) -> list[RecordBatch]:
    """Read all batches from the start on, in as many reads as that takes."""
    offset, end = log.bounds()
    found: list[RecordBatch] = []
    while offset < end:
        batches = await log.read(offset, bytes_max)
        assert batches, f"nothing was read at offset {offset}, before the end at {end}"
        assert batches[0].base_offset <= offset < batches[0].end_offset
        found += batches
        offset = batches[-1].end_offset
    return found


def values_by_offset(batches: Sequence[RecordBatch]) -> dict[int, bytes | None]:
    """The values of all records."""
    return {batch.offset(index): batch.value(index) for batch in batches for index in range(batch.count)}


async def sent_over(env: Env, sendables: Sequence[Sendable]) -> bytes:
    """Send `sendables` over a connection; returns the received bytes."""
    listener = await env.net.listen("127.0.0.1:0")
    client = await env.net.connect(listener.address)
    server = await listener.accept()
    received, buffer = bytearray(), memoryview(bytearray(1 << 16))

    async def send() -> None:
        await server.send(sendables)
        await server.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while count := await client.receive_into(buffer):
            received += buffer[:count]
    await client.aclose()
    await listener.aclose()
    return bytes(received)
