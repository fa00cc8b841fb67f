"""Publishing over the native protocol: requests in order, answered when they are confirmed.

Law: publishes of one connection are stored in the order in which they came. One that finds a topic full waits, and
those behind it wait with it, while all other requests go on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import trio

from linn.core.broker import Destination
from linn.core.errors import LimitExceeded, LinnError, ProtocolError, RequestUnknown
from linn.core.memory_budget import RESERVE_BYTES
from linn.core.partition import Partition
from linn.core.semantics import Acks
from linn.core.topic import Topic
from linn.protocols.capnp import messages as m
from linn.protocols.capnp.connection import Event

if TYPE_CHECKING:
    from linn.protocols.capnp.session import Session

PAIRS_AT_ONCE_MAX = 64
"""Distinct (routing key, labels) of a batch for which exchanges are asked without giving others their turn."""
TURN_S = 0.002
"""Beyond that, exchanges are asked for so long at a time."""
_ACKS: tuple[Acks, ...] = ("none", "leader", "all")
"""By their number in the schema."""


class _Waiting(NamedTuple):
    """A publish that has to wait for room in a topic, or for the topic to be made."""

    event: Event
    bytes: int


class Publishing:
    """The publishes of one connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._broker = session.broker
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        """Of batches that wait: they count against the connection's budget, and the broker's."""
        self._memory = session.broker.memory.received

    @property
    def is_waiting(self) -> bool:
        """Whether a publish waits for room."""
        return bool(self._waiting)

    def is_full(self) -> bool:
        """Whether so much waits that no more should be read; where memory is short, that is little.

        A connection with subscriptions is read on then, up to its own limit: its settlements make room.
        """
        waiting, session = self.waiting_bytes, self._session
        if waiting >= session.settings.connection_bytes_max:
            return True
        return waiting > RESERVE_BYTES and self._memory.is_over and not session.consumes

    def close(self) -> None:
        """The connection is gone, and what waited with it."""
        self._memory.give_back(self.waiting_bytes)
        self.waiting_bytes = 0
        self._waiting.clear()

    def publish(self, event: Event) -> None:
        """Carry out a publish, or put it behind those that wait."""
        try:
            must_wait = self._waiting or self._wants_topic(event) or self._takes_long(event)
            done = not must_wait and self._try(event) is None
        except LinnError as error:
            self._fail(event, error)
            return
        if not done:
            size = sum(batch.size for batch in event.batches)
            self._waiting.append(_Waiting(event, size))
            self.waiting_bytes += size
            self._memory.used_bytes += size
            if len(self._waiting) == 1:
                self._session.nursery.start_soon(self._publish_waiting)

    def _fail(self, event: Event, error: LinnError) -> None:
        publish = event.message
        assert isinstance(publish, m.Publish)
        self._broker.metrics.publish_failed(None if publish.to_exchange else publish.target, error.code)
        self._session.fail(event.correlation, error)

    def _wants_topic(self, event: Event) -> bool:
        """Whether the topic has to be made first."""
        publish, broker = event.message, self._broker
        assert isinstance(publish, m.Publish)
        return (
            broker.config.broker.auto_create_topics and not publish.to_exchange and publish.target not in broker.topics
        )

    @staticmethod
    def _takes_long(event: Event) -> bool:
        """Whether finding where it goes must give others their turn."""
        publish = event.message
        assert isinstance(publish, m.Publish)
        return publish.to_exchange and any(batch.pair_count > PAIRS_AT_ONCE_MAX for batch in event.batches)

    async def _prepare(self, event: Event) -> None:
        """Have its exchange find the answers. Raises LinnError."""
        publish, broker = event.message, self._broker
        assert isinstance(publish, m.Publish)
        monotonic, until_s = broker.env.clock.monotonic, 0.0
        for batch in event.batches:
            batch.verify(broker.limits)
            for _ in broker.router(publish.target).prepare(batch):
                if monotonic() > until_s:
                    await trio.lowlevel.checkpoint()
                    until_s = monotonic() + TURN_S

    def _try(self, event: Event) -> Topic | None:
        """Publish; or the topic that has no room now, and nothing is stored. Raises LinnError."""
        publish = event.message
        assert isinstance(publish, m.Publish)
        if not event.batches:
            raise ProtocolError("a publish without batches")
        if publish.acks >= len(_ACKS):
            raise RequestUnknown(f"acks {publish.acks} is not known to this version")
        broker = self._broker
        wants_returned = publish.mandatory and publish.to_exchange
        if wants_returned and sum(batch.count for batch in event.batches) > m.MANDATORY_RECORDS_MAX:
            raise LimitExceeded(f"a mandatory publish of more than {m.MANDATORY_RECORDS_MAX} records")
        planned: list[tuple[list[Destination], list[int]]] = []
        for batch in event.batches:
            batch.verify(broker.limits)
            destinations = broker.destinations(publish.target, publish.to_exchange, publish.partition, batch)
            for topic, _, part in destinations:
                if not topic.has_room(part):
                    return topic
            returned = broker.unroutable(publish.target, batch) if wants_returned else []
            planned.append((destinations, returned))
        placements: list[m.Placement] = []
        awaits: list[tuple[Partition, int]] = []
        for batch, (destinations, returned) in zip(event.batches, planned, strict=True):
            partition, base_offset, copies, uncommitted = broker.append(destinations, batch, _ACKS[publish.acks])
            if not copies:
                broker.metrics.unrouted_batches += 1
            placements.append(m.Placement(partition, base_offset, copies, returned))
            awaits += uncommitted
        if awaits:
            self._session.when_committed(awaits, event.correlation, m.Published(placements))
        else:
            self._session.reply(event.correlation, m.Published(placements))
        return None

    async def _publish_waiting(self) -> None:
        """Publish in order what had to wait."""
        waiting = self._waiting
        while waiting:
            event, size = waiting[0]
            try:
                if self._wants_topic(event):
                    assert isinstance(event.message, m.Publish)
                    await self._broker.administration.create_default_topic(event.message.target)
                if self._takes_long(event):
                    await self._prepare(event)
                full = self._try(event)
                if full is not None:
                    await full.wait_room()
                    continue
            except LinnError as error:
                self._fail(event, error)
            except Exception as error:
                self._session.fail_unforeseen(event.correlation, error)
            waiting.popleft()
            self.waiting_bytes -= size
            self._memory.give_back(size)
            self._session.budget_changed()
