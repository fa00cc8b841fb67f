"""Shipping: gets a producer's batches to the broker: how many at once, in which order, how often again.

Laws: the batches of a lane are sent in order; after the connection was lost, all that were not answered are sent again
in that order (the broker may have stored some already: then they are there twice). Where the broker refuses a batch for
now, its lane stands still until the refused batch was sent again; batches that were in flight behind it may have been
stored before it, unless `in_flight_max` is 1. What is not confirmed when the request timeout is over, counted from
when its first message was taken, fails and is not sent any more. Each confirmation is settled exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from linn.client.connection.answer import again
from linn.client.produce.confirmation import Confirmation
from linn.client.produce.partition_buffer import Lane, Shipment
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import ConnectionLost, LinnError, ProtocolError, RequestTimeout
from linn.wire.messages import Acks, Message, Publish, Published

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.client.connection.connection import Link

_READY_MAX = 2
"""Finished batches that may wait per producer before `room` holds publishers back: the next and one more."""
_TICKS_PER_TIMEOUT = 4
"""How often the time is looked at while there are batches: once per tick, and not with each batch."""


class Shipping:
    """One producer's.

    `on_idle` is called when a lane has nothing on its way any more, `on_tick` before time goes on: messages of
    different ticks share no batch.
    """

    def __init__(
        self,
        client: Client,
        target: str,
        to_exchange: bool,
        acks: Acks,
        in_flight_max: int,
        on_idle: Callable[[Lane], None],
        on_tick: Callable[[], None],
    ) -> None:
        self.buffered_bytes = 0
        """Of finished batches that are not settled."""
        self._client = client
        self._target = target
        self._to_exchange = to_exchange
        self._acks = acks
        self._in_flight_max = in_flight_max
        self._on_idle = on_idle
        self._on_tick = on_tick
        self._unsettled: dict[Shipment, None] = {}
        """In the order in which they were enqueued."""
        self._in_flight = 0
        self._waiting: deque[Lane] = deque()
        self._ready_count = 0
        self._listening_to: Link | None = None
        self._room: anyio.Event | None = None
        self._watching_time = False
        self.ticks = 0
        """How often the time was looked at."""

    # --- in ---

    def enqueue(
        self,
        lane: Lane,
        batch: RecordBatch,
        confirmation: Confirmation,
        mandatory: bool = False,
        attended: bool = False,
        opened_tick: int | None = None,
    ) -> None:
        """Take a batch; it is sent within the call if nothing is in its way.

        Args:
            attended: see `Link.ask`.
            opened_tick: from when its time counts; None: from now on.
        """
        shipment = Shipment(self, lane, batch, confirmation, mandatory)
        shipment.attended = attended
        shipment.asked_tick = self.ticks if opened_tick is None else opened_tick
        lane.ready.append(shipment)
        self._unsettled[shipment] = None
        if not self._watching_time:
            self._watching_time = True
            self._client._timers.after(self._client.options.request_timeout_s / _TICKS_PER_TIMEOUT, self._watch_time)
        self.buffered_bytes += batch.size
        self._ready_count += 1
        self._queue(lane)
        self.pump()

    async def room(self, bytes_max: int) -> None:
        """Wait until there is room for another batch. Raises RequestTimeout. Cancellation: nothing happens."""
        if self._has_room(bytes_max):
            return
        with self._client._time_limit(f"publish to {self._target}"):
            while not self._has_room(bytes_max):
                self._room = self._room or anyio.Event()
                await self._room.wait()

    def _has_room(self, bytes_max: int) -> bool:
        return self._ready_count < _READY_MAX and self.buffered_bytes < bytes_max

    def unsettled(self) -> list[Confirmation]:
        """Of all batches that are on their way or will be."""
        return [shipment.confirmation for shipment in self._unsettled]

    # --- out ---

    def pump(self) -> None:
        """Send what may be sent now."""
        while self._waiting and self._in_flight < self._in_flight_max:
            link = self._client._usable_link
            if link is None:
                self._client._want_link()
                return
            if not link.ready:
                if self._listening_to is not link:
                    self._listening_to = link
                    link.when_ready(self._link_ready)
                return
            lane = self._waiting.popleft()
            lane.queued = False
            if lane.ready:  # Its time may have been over.
                self._send(link, lane)
                self._queue(lane)

    def _link_ready(self) -> None:
        self._listening_to = None
        self.pump()

    def _queue(self, lane: Lane) -> None:
        if lane.ready and not lane.queued and not lane.held:
            lane.queued = True
            self._waiting.append(lane)

    def _send(self, link: Link, lane: Lane) -> None:
        shipment = lane.ready.pop(0)
        self._ready_count -= 1
        message = Publish(self._target, self._to_exchange, self._acks, lane.partition, shipment.mandatory)
        if self._acks == Acks.NONE:
            link.tell(message, [shipment.batch])
            self._settle(shipment, None, None)
            return
        shipment.attempts += 1
        lane.in_flight[shipment.sequence] = shipment
        self._in_flight += 1
        shipment.correlation = link.ask(shipment, message, [shipment.batch], attended=shipment.attended)
        if self._room is not None:
            self._make_room()

    # --- what became of a shipment ---

    def confirmed(self, shipment: Shipment, message: Message) -> None:
        """The broker answered."""
        self._landed(shipment)
        if isinstance(message, Published) and len(message.placements) == 1:
            self._settle(shipment, message, None)
        else:
            self._settle(shipment, None, ProtocolError(f"the broker answered publish with {type(message).__name__}"))
        self._go_on(shipment.lane)

    def refused(self, shipment: Shipment, error: LinnError) -> None:
        """The broker refused, or the connection was lost."""
        lane = shipment.lane
        if shipment.sequence not in lane.in_flight:
            return  # Its time was up while its link was ending.
        self._landed(shipment)
        shipment.attended = False
        shipment.refusal = error
        if error.retriable and not self._client.options._is_used_up(shipment.attempts) and not self._client._closed:
            lane.put_back(shipment)
            self._ready_count += 1
            lane.held = lane.held or not isinstance(error, ConnectionLost)
        else:
            self._settle(shipment, None, error)
        self._go_on(lane)

    def _landed(self, shipment: Shipment) -> None:
        del shipment.lane.in_flight[shipment.sequence]
        self._in_flight -= 1

    def _go_on(self, lane: Lane) -> None:
        lane.held = lane.held and bool(lane.ready)
        if lane.held and not lane.in_flight:
            # Whatever became of the last one behind the refused one: a refusal, a confirmation, its time was up.
            self._client._timers.after(self._client._backoff_of(lane.ready[0].attempts), lambda: self._release(lane))
        elif lane.ready:
            self._queue(lane)
        elif not lane.in_flight:
            self._on_idle(lane)
        if self._waiting:
            self.pump()

    def _release(self, lane: Lane) -> None:
        lane.held = False
        self._go_on(lane)

    def _settle(self, shipment: Shipment, answer: Published | None, error: LinnError | None) -> None:
        del self._unsettled[shipment]
        self.buffered_bytes -= shipment.batch.size
        shipment.confirmation.settle(answer.placements[0] if answer is not None else None, error)
        if self._room is not None:
            self._make_room()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _watch_time(self) -> None:
        """Fail what has not been confirmed within the timeout, or up to a tick longer."""
        self._on_tick()
        self.ticks += 1
        newest = self.ticks - _TICKS_PER_TIMEOUT - 1
        for shipment in [each for each in self._unsettled if each.asked_tick <= newest]:
            if shipment in self._unsettled:
                self._withdraw(shipment)
                self._settle(shipment, None, self._overdue(shipment))
                self._go_on(shipment.lane)
        self._watching_time = bool(self._unsettled)
        if self._watching_time:
            self._client._timers.after(self._client.options.request_timeout_s / _TICKS_PER_TIMEOUT, self._watch_time)

    def _withdraw(self, shipment: Shipment) -> None:
        lane, link = shipment.lane, self._client._usable_link
        if shipment.sequence in lane.in_flight:
            if link is not None:
                link.forget(shipment.correlation)
            self._landed(shipment)
        else:
            lane.ready.remove(shipment)
            self._ready_count -= 1

    def _overdue(self, shipment: Shipment) -> LinnError:
        """What a batch fails with whose time is over."""
        refusal, within = shipment.refusal, f"within {self._client.options.request_timeout_s:g} s"
        if refusal is not None and not isinstance(refusal, ConnectionLost):
            return again(refusal)
        if shipment.attempts:
            return RequestTimeout(f"{self._target} did not confirm a batch {within}; it may or may not be stored")
        outage = self._client._outage
        reason = "those before it were not confirmed" if outage is None else outage.error.text
        return RequestTimeout(f"a batch for {self._target} was not sent {within}: {reason}")

    def give_up(self, lanes: list[Lane], error: LinnError) -> None:
        """Fail everything that has not been sent, because there is no broker to send it to."""
        self._waiting.clear()
        for lane in lanes:
            lane.queued = lane.held = False
            ready, lane.ready = lane.ready, []
            self._ready_count -= len(ready)
            for shipment in ready:
                self._settle(shipment, None, error)
        self._make_room()
