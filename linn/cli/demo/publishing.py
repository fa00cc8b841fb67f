"""Publishing of flights: one task converts rows to events while another publishes the previous chunk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import ObjectSendStream

from linn.cli.demo.flights import flight_of, rows
from linn.cli.demo.progress import Progress
from linn.cli.demo.tally import Tally
from linn.client.client import Client

CHUNK_FLIGHTS_MAX = 4096
"""Flights of one confirmed call, about 700 KB."""
_CHUNKS_MIN = 80
"""Minimum number of calls, so that the few late departures of a short run reach all workers."""
_CHUNKS_AHEAD = 2

_encode = msgspec.json.Encoder().encode


class Chunk(NamedTuple):
    """Messages in columns."""

    values: list[bytes]
    keys: list[bytes]
    routing_keys: list[str]
    labels: list[dict[str, str]]
    late: int
    """Number of late departures."""


def chunks(limit: int | None, size: int, tally: Tally) -> Iterator[Chunk]:
    """Yield the first `limit` flights as messages, and enter each row in `tally`. Raises FlightsMissing."""
    labels: dict[str, dict[str, str]] = {}
    numbered = enumerate(rows(limit))
    while part := list(islice(numbered, size)):
        flights = [flight_of(number, row) for number, row in part]
        for number, row in part:
            tally.add_row(number, row)
        yield Chunk(
            values=list(map(_encode, flights)),
            keys=[flight.carrier.encode() for flight in flights],
            routing_keys=[flight.routing_key for flight in flights],
            labels=[labels.setdefault(flight.carrier, {"carrier": flight.carrier}) for flight in flights],
            late=sum(flight.late for flight in flights),
        )


async def publish_flights(client: Client, exchange: str, limit: int | None, tally: Tally, progress: Progress) -> None:
    """Publish all flights and wait for confirmation. Raises LinnError."""
    stretch = progress.publishing
    send, receive = anyio.create_memory_object_stream[Chunk](_CHUNKS_AHEAD)
    stretch.start()
    async with anyio.create_task_group() as tasks:
        size = max(1, min(CHUNK_FLIGHTS_MAX, progress.flights // _CHUNKS_MIN))
        tasks.start_soon(_prepare, send, limit, size, tally)
        async with receive, client.producer(exchange=exchange) as producer:
            async for chunk in receive:
                progress.working.expected += chunk.late
                await producer.publish_many(
                    chunk.values, keys=chunk.keys, routing_keys=chunk.routing_keys, labels=chunk.labels
                )
                stretch.done += len(chunk.values)
    stretch.end()


async def _prepare(send: ObjectSendStream[Chunk], limit: int | None, size: int, tally: Tally) -> None:
    async with send:
        for chunk in chunks(limit, size, tally):
            await send.send(chunk)
