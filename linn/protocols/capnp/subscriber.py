"""One subscription of one connection: credit in, deliveries out."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from linn.core.delivery import Consumer, Delivery
from linn.protocols.capnp import messages as m
from linn.protocols.capnp.connection import frames_of
from linn.protocols.capnp.outbox import Outbox

DELIVERY_BYTES = 1 << 20
"""Batches of one delivery: a few socket buffers' worth, so that others get their turn."""
CREDIT_MAX = 1 << 31


class Subscriber:
    """Pushes while there is credit and room, and answers pulls; one at a time asks the consumer."""

    consumer: Consumer

    def __init__(self, id: int, outbox: Outbox) -> None:
        self.id = id
        self._outbox = outbox
        self._credit = 0
        self._credited = trio.Event()
        self._asking = trio.Lock()
        self._scope = trio.CancelScope()
        self._paused = False
        self._begun = False
        self._assigned: m.Assigned | None = None

    def assigned(self, generation: int, partitions: Sequence[int]) -> None:
        """The group's share changed; the client hears of it behind its answer to subscribe."""
        self._assigned = m.Assigned(self.id, generation, list(partitions))
        if self._begun:
            self._outbox.put(frames_of(self._assigned))

    def begin(self, credit: int) -> None:
        """The client knows the subscription now."""
        self._begun = True
        if self._assigned is not None:
            self._outbox.put(frames_of(self._assigned))
        self.grant(credit)

    def grant(self, records: int) -> None:
        """Allow this many more records to be pushed."""
        self._credit = min(self._credit + records, CREDIT_MAX)
        if self._credit > 0:
            self._credited.set()

    def pause(self) -> None:
        """Push nothing more."""
        self._paused = True
        self._credit = 0
        self._credited = trio.Event()

    def is_holding(self) -> bool:
        """Whether the client holds leases that it may still settle."""
        return self.consumer.is_holding()

    def cancel(self) -> None:
        """End `run`."""
        self._scope.cancel()

    def close(self) -> None:
        """Give back all that is leased."""
        self.cancel()
        self.consumer.close()

    async def run(self) -> None:
        """Push until cancelled. Raises LinnError where the consumer can't go on."""
        with self._scope:
            while True:
                if self._credit <= 0:
                    self._credited = trio.Event()
                    await self._credited.wait()
                    continue
                await self._outbox.wait_room()
                async with self._asking:
                    if self._credit > 0 and not self._paused:
                        await self._push()

    async def _push(self) -> None:
        delivery = await self.consumer.next(self._credit, DELIVERY_BYTES)
        self._credit -= delivery.count
        if delivery.batches:
            self._deliver(0, delivery)

    def _deliver(self, correlation: int, delivery: Delivery) -> None:
        message = m.Deliver(self.id, delivery.partition, delivery.delivery_id, delivery.attempt)
        self._outbox.put(frames_of(message, correlation, list(delivery.batches)))

    async def pull(self, correlation: int, records_max: int, wait_s: float) -> None:
        """Answer a pull with records, or without any when the time has passed. Raises LinnError."""
        delivery = Delivery(0, 0, 0, ())
        if records_max > 0 and not self._paused:
            with trio.move_on_after(wait_s):
                async with self._asking:
                    delivery = await self.consumer.next(min(records_max, CREDIT_MAX), DELIVERY_BYTES)
        self._deliver(correlation, delivery)
