"""RabbitMQ's own protocol for streams, by rstream: the one that publishes records in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import rstream

from benchmarks.peers.cargo import Supply
from benchmarks.peers.peer import PeerFailed
from benchmarks.peers.plan import CHUNK, WINDOW
from benchmarks.peers.stopwatch import Stopwatch

LIMIT_S = 60.0
"""A piece of work that takes longer is given up."""
LOGIN: dict[str, Any] = {"username": "guest", "password": "guest"}


class StreamSession:
    """A connection per piece of work."""

    def __init__(self, port: int) -> None:
        self._port = port

    def publish(self, stream: str, supply: Supply, watch: Stopwatch) -> None:
        """Publish in batches, with the window. Raises PeerFailed."""
        _run(self._publish(stream, supply, watch))

    def read(self, stream: str, expected: int, watch: Stopwatch) -> list[bytes]:
        """Read from the first record on. Raises PeerFailed."""
        received: list[bytes] = []
        _run(self._read(stream, expected, watch, received))
        return received

    async def _publish(self, stream: str, supply: Supply, watch: Stopwatch) -> None:
        confirmations = Confirmations()
        async with rstream.Producer("127.0.0.1", self._port, **LOGIN) as producer:
            with watch:
                for values in supply.chunks(CHUNK):
                    await producer.send_batch(stream, values, on_publish_confirm=confirmations.arrived)
                    await confirmations.at_least(supply.taken - WINDOW + CHUNK)
                await confirmations.at_least(supply.taken)

    async def _read(self, stream: str, expected: int, watch: Stopwatch, received: list[bytes]) -> None:
        is_full = asyncio.Event()

        def arrived(value: Any, context: rstream.MessageContext) -> None:
            received.append(value)
            if len(received) == expected:
                is_full.set()

        consumer = rstream.Consumer("127.0.0.1", self._port, **LOGIN)
        await consumer.start()
        try:
            with watch:
                first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
                await consumer.subscribe(stream, arrived, offset_specification=first)
                running = asyncio.create_task(consumer.run())
                await is_full.wait()
            running.cancel()
        finally:
            await consumer.close()


class Confirmations:
    """Counts what is confirmed: rstream calls for each record, and has no other way."""

    def __init__(self) -> None:
        self._count = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    def arrived(self, status: rstream.ConfirmationStatus) -> None:
        """Take one. Raises PeerFailed."""
        if not status.is_confirmed:
            raise PeerFailed(f"RabbitMQ refused a record: {status.response_code}")
        self._count += 1
        if self._count >= self._wanted:
            self._reached.set()

    async def at_least(self, count: int) -> None:
        """Wait until so many are confirmed."""
        self._wanted = count
        if self._count < count:
            self._reached.clear()
            await self._reached.wait()


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(asyncio.wait_for(work, LIMIT_S))
    except TimeoutError:
        raise PeerFailed(f"RabbitMQ's stream protocol: no end after {LIMIT_S:g} s") from None
