"""One subscription of one connection: credit in, deliveries out.

Pushed records use up credit, and the client grants more. With leases, credit is instead the number of records that the
client may hold, and is restored when a lease ends in any way. A lower credit takes effect at once, even for a waiting
push: a client that leaves sets it to 0, so that it does not get the released records again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from linn.api import (
    NOTHING,
    AnyConsumer,
    ConsumerKind,
    Delivery,
    Mark,
    Member,
    SubscribeRequest,
    SubscriptionOf,
    SubscriptionWrongKind,
    WaitDeadline,
)
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import frames_of, frames_to

CREDIT_MAX = 1 << 31
RELEASE_LINGER_S = 0.005
"""Time for which a small part of the credit waits for more releases; otherwise each ack would push a single record."""
LINGER_CREDIT_MIN = 64
"""Credit from which on it waits: with less, jobs are so few or so slow that each consumer waits for its next one."""


class Subscriber:
    """A subscription that pushes while there is credit and room, and answers pulls. Tasks take turns."""

    consumer: AnyConsumer

    def __init__(
        self, id: int, request: SubscribeRequest, responder: Responder, delivery_bytes: Callable[[], int]
    ) -> None:
        self.id = id
        self._request = request
        self._responder = responder
        self._outbox = responder.outbox
        self._delivery_bytes = delivery_bytes
        self._credit = 0
        self._credited = trio.Event()
        self._asking = trio.Lock()
        self._scope = trio.CancelScope()
        self._paused = False
        self._closed = False
        self._deadlines: dict[WaitDeadline, None] = {}
        self._begun = False
        self._assigned: m.Assigned | None = None

    def assigned(self, epoch: int, partitions: Sequence[int], revoked: Sequence[int]) -> None:
        """Record a change of a group member's share; the client is told after its subscribe was answered."""
        self._assigned = m.Assigned(self.id, epoch, list(partitions), list(revoked))
        if self._begun:
            self._outbox.put(frames_of(self._assigned))

    def begin(self, credit: int) -> None:
        """Start pushing: the client knows the subscription now."""
        self._begun = True
        self.consumer.takes_stored = True
        self.consumer.on_ended = self._wake
        if self.consumer.lease_ms:
            self.consumer.on_released, self.consumer.on_lease_lost = self._released, self._tell_lost
        if self._assigned is not None:
            self._outbox.put(frames_of(self._assigned))
        if self.consumer.kind is ConsumerKind.SHARED:
            self.consumer.on_active = self._tell_active
        self.grant(credit)

    def grant(self, records: int) -> None:
        """Allow `records` more records to be pushed or, with leases, to be held."""
        if self._paused:
            return
        if self.consumer.lease_ms and (records < self._credit or records == 0):
            self._end_waits()
        before = 0 if self.consumer.lease_ms else self._credit
        self._credit = min(before + records, CREDIT_MAX)
        self._wake()

    def _wake(self) -> None:
        self._credited.set()

    def _released(self) -> None:
        if self._credit:  # A client that only pulls has no credit.
            self._wake()

    async def _until_woken(self) -> None:
        self._credited = trio.Event()
        await self._credited.wait()

    def _left(self) -> int:
        """The number of records that may be pushed now."""
        return self._credit - self.consumer.held

    async def _linger(self) -> None:
        """Wait a moment until at least half of a large credit is available."""
        with trio.move_on_after(RELEASE_LINGER_S):
            while self._credit >= LINGER_CREDIT_MIN and 0 < 2 * self._left() < self._credit:
                await self._until_woken()

    def _tell_lost(self, partition: int, delivery_id: int) -> None:
        self._outbox.put(frames_of(m.LeaseEnded(self.id, partition, delivery_id)))

    def _tell_active(self, partitions: Sequence[int]) -> None:
        self._outbox.put(frames_of(m.Assigned(self.id, 0, list(partitions), [])))

    def pause(self) -> None:
        """Stop pushing, and answer pulls at once, with or without records."""
        self._paused = True
        self._credit = 0
        self._credited = trio.Event()
        self._end_waits()

    def _end_waits(self) -> None:
        """End the wait for records to push, and answer waiting pulls without records."""
        for deadline in self._deadlines:
            deadline.end()

    def described(self) -> SubscriptionOf:
        """Describe the subscription, for `connection.list`."""
        request, consumer = self._request, self.consumer
        return SubscriptionOf(request.topic, request.group, request.shared, consumer.name, consumer.held)

    def is_holding(self) -> bool:
        """Whether the client holds leases that it can still settle."""
        return self.consumer.is_holding()

    def cancel(self) -> None:
        """End `run`."""
        self._scope.cancel()

    @property
    def member(self) -> Member:
        """Return the group's member behind this subscription. Raises SubscriptionWrongKind."""
        if self.consumer.kind is not ConsumerKind.GROUP:
            raise SubscriptionWrongKind("only members of a group have heartbeats and commit offsets")
        return self.consumer

    def resolve(self, resolve: m.Resolve) -> tuple[bool, Sequence[tuple[Mark, int]]]:
        """See `CompetingConsumer.resolve`. Raises SubscriptionWrongKind for a stream's reader."""
        if self.consumer.kind is not ConsumerKind.SHARED:
            raise SubscriptionWrongKind(
                "only consumers of queues and shared subscriptions have deliveries in two phases"
            )
        return self.consumer.resolve(resolve.partition, resolve.delivery_id, resolve.first, resolve.end)

    def seek(self, partition: int, offset: int | None, *, is_paused: bool) -> None:
        """Move a stream's reader. Raises the errors of `StreamConsumer.seek`; SubscriptionWrongKind for a queue."""
        if self.consumer.kind is ConsumerKind.SHARED:
            raise SubscriptionWrongKind("only streams are read from an offset; a queue's consumer can't seek or pause")
        self.consumer.seek(partition, offset, is_paused=is_paused)

    def end(self) -> None:
        """Stop delivering."""
        self._closed = True
        self.consumer.wants = False
        self.pause()
        self.cancel()

    async def run(self) -> None:
        """Push until cancelled. Raises LinnError if the consumer fails."""
        with self._scope:
            while True:
                if self.consumer.ended:
                    await self._next(1, WaitDeadline())  # Raises the reason.
                if self._left() <= 0:
                    self.consumer.wants = False
                    await self._until_woken()
                    continue
                self.consumer.wants = True
                await self._linger()
                if not self._outbox.has_room():
                    self.consumer.wants = False  # Others take more of what it can't be sent.
                    await self._outbox.wait_room()
                    continue
                async with self._asking:
                    if self._left() > 0 and not self._paused:
                        await self._push()

    async def _push(self) -> None:
        delivery = await self._next(self._left(), WaitDeadline())
        if not self.consumer.lease_ms:
            self._credit -= delivery.count
        if delivery.batches:
            self._deliver(0, delivery)

    def _deliver(self, correlation: int, delivery: Delivery) -> None:
        numbers = delivery.partition, delivery.delivery_id, delivery.attempt
        message = m.Deliver(self.id, *numbers, 0, delivery.phase, delivery.settled_before)
        if correlation:
            self._responder.reply_with(correlation, message, delivery.batches)
        else:
            self._outbox.put(frames_to(message, 0, delivery.batches))

    async def pull(self, correlation: int, pull: m.Pull, wait_s: float) -> None:
        """Answer a pull with records, or without records when its time is over. Raises LinnError."""
        delivery, deadline, records_max = NOTHING, WaitDeadline(wait_s), min(pull.records_max, CREDIT_MAX)
        if records_max > 0 and not self._paused and await self._may_ask(deadline):
            try:
                if not pull.placed:
                    delivery = await self._next(records_max, deadline)
                else:
                    delivery = await self._next_from(pull.partition, pull.start, records_max)
            finally:
                self._asking.release()
        self._deliver(correlation, delivery if not self._closed else NOTHING)

    async def _may_ask(self, deadline: WaitDeadline) -> bool:
        """Wait until no other task uses the consumer; False if the deadline came first."""
        if not self._asking.locked():
            await self._asking.acquire()
            return True
        self._deadlines[deadline] = None
        try:
            return await deadline.wait(self._asking.acquire)
        finally:
            del self._deadlines[deadline]

    async def _next_from(self, partition: int, start: int, records_max: int) -> Delivery:
        if self.consumer.kind is not ConsumerKind.SHARED:
            raise SubscriptionWrongKind("a pull from an offset is for queues; fetch reads a stream from anywhere")
        return await self.consumer.next_from(partition, start, records_max, self._delivery_bytes())

    async def _next(self, records_max: int, deadline: WaitDeadline) -> Delivery:
        self._deadlines[deadline] = None
        try:
            while True:
                delivery = await self.consumer.next(records_max, self._delivery_bytes(), deadline)
                if delivery.batches or not delivery.passed_to:
                    return delivery
                passed = m.Deliver(self.id, delivery.partition, 0, 0, delivery.passed_to)
                self._outbox.put(frames_of(passed))
                await self._outbox.wait_room()
        finally:
            del self._deadlines[deadline]
