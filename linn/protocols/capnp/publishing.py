"""Publishing over the native protocol: requests in order, answered when they are confirmed.

Law: publishes of one connection are stored in the order in which they came. One that finds a topic full waits, and
those behind it wait with it, while all other requests go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from linn.core.errors.tree import LimitExceeded, LinnError, ProtocolError, RequestUnknown, TopicUnknown
from linn.core.log.partition import Partition
from linn.core.loop.memory_budget import RESERVE_BYTES
from linn.core.publish.destination import Destination, Plan
from linn.core.queue.semantics import Acks
from linn.core.routing.budget import PublishBudget, TakesLong
from linn.core.topics.topic import Topic
from linn.protocols.capnp.caretaker import wait_while
from linn.protocols.capnp.parts_memory import PartsMemory
from linn.wire import messages as m
from linn.wire.connection import Event

if TYPE_CHECKING:
    from linn.protocols.capnp.session import Session

PAIRS_AT_ONCE_MAX = 64
"""Distinct (routing key, labels) of a publish for which exchanges are asked without giving others their turn."""
_ACKS: tuple[Acks, ...] = ("none", "leader", "all")
"""By their number in the schema."""
WAITING_BYTES = BATCH_BYTES = 512
"""What a publish that waits takes beside what came, and what each of its batches does."""
LEAVE_S = 2.5
"""For what waits on a connection whose client has said all: work in turns takes no longer."""
Planned = tuple[list[Destination], list[int]]
"""Of one batch: where it goes, and which of its records no topic takes, as the answer has it."""


class _Waiting(NamedTuple):
    """A publish that has to wait for room in a topic, or for the topic to be made."""

    event: Event
    bytes: int
    in_turns: bool
    """Whether it was too much to be done at once."""


class Publishing:
    """The publishes of one connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._broker = session.broker
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        """Of batches that wait: they count against the connection's budget, and the broker's."""
        self._memory = session.broker.memory.received
        self._at_once = PublishBudget(at_once=True)

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
        del self._session

    async def wait_done(self) -> None:
        """Wait until no publish waits, but not for long: of one without room that may be never."""
        await wait_while(lambda: self._waiting, self._broker.env.clock, LEAVE_S)

    def publish(self, event: Event) -> None:
        """Carry out a publish, or put it behind those that wait."""
        in_turns = False
        try:
            self._check(event)
            must_wait = self._waiting or self._wants_topic(event) or self._takes_long(event)
            done = not must_wait and self._try(event) is None
        except TakesLong:
            done, in_turns = False, True
        except LinnError as error:
            self._fail(event, error)
            return
        if not done:
            size = _held_bytes(event)
            self._waiting.append(_Waiting(event, size, in_turns))
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
        """Whether it is plain that finding where it goes must give others their turn."""
        publish = event.message
        assert isinstance(publish, m.Publish)
        return publish.to_exchange and sum([batch.pair_count for batch in event.batches]) > PAIRS_AT_ONCE_MAX

    @staticmethod
    def _check(event: Event) -> None:
        """Raises LinnError."""
        publish = event.message
        assert isinstance(publish, m.Publish)
        if not event.batches:
            raise ProtocolError("a publish without batches")
        if publish.acks >= len(_ACKS):
            raise RequestUnknown(f"acks {publish.acks} is not known to this version")
        if _wants_returned(publish) and sum(batch.count for batch in event.batches) > m.MANDATORY_RECORDS_MAX:
            raise LimitExceeded(f"a mandatory publish of more than {m.MANDATORY_RECORDS_MAX} records")

    def _try(self, event: Event) -> Topic | None:
        """Publish; or the topic that has no room now, and nothing is stored. Raises LinnError, TakesLong."""
        publish, broker, budget = event.message, self._broker, self._at_once
        assert isinstance(publish, m.Publish)
        budget.begin()
        planned: list[Planned] = []
        for batch in event.batches:
            batch.verify(broker.limits)
            destinations = broker.destinations(publish.target, publish.to_exchange, publish.partition, batch, budget)
            full = _without_room(destinations)
            if full is not None:
                return full.topic
            returned = broker.unroutable(publish.target, batch, budget) if _wants_returned(publish) else []
            planned.append((destinations, returned))
        self._store(event, publish, planned)
        return None

    def _store(self, event: Event, publish: m.Publish, planned: list[Planned]) -> None:
        """Store what was checked whole, and answer, now or when it is committed. Raises StorageError."""
        broker = self._broker
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

    # --- in turns ---

    async def _publish_in_turns(self, event: Event) -> None:
        """Publish, with others having their turn while it is routed and taken apart. Raises LinnError.

        Cancellation: nothing is stored.
        """
        publish = event.message
        assert isinstance(publish, m.Publish)
        while True:
            with PartsMemory(self._broker) as parts:
                plan = Plan(self._broker, publish.target, publish.to_exchange)
                try:
                    planned = await self._planned(event, publish, plan, parts)
                except TopicUnknown:
                    if plan.may_have_lost_a_topic():
                        continue
                    raise
                # From here to the end of `_store` nobody else has a turn: what was checked holds.
                full = None
                if plan.is_current():
                    full = _without_room([each for destinations, _ in planned for each in destinations])
                    if full is None:
                        self._store(event, publish, planned)
                        return
                planned.clear()  # Before others are made.
            if full is not None:
                await self._wait_room(full)

    async def _planned(self, event: Event, publish: m.Publish, plan: Plan, parts: PartsMemory) -> list[Planned]:
        planned: list[Planned] = []
        for batch in event.batches:
            batch.verify(self._broker.limits)
            steps = plan.destinations_in_steps(batch, parts.budget)
            destinations, routed = await parts.in_turns(steps)
            returned = routed.unroutable() if routed is not None and _wants_returned(publish) else []
            planned.append((destinations, returned))
        return planned

    async def _wait_room(self, full: Destination) -> None:
        """Wait until a topic has room for a part, of which its size counts: all parts are made anew then."""
        topic, _, part = full
        broker = self._broker
        with self._counted(part.size):
            while broker.topics.get(topic.name) is topic and not broker.stopping and not topic.has_room(part):
                await topic.wait_room()

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        self._memory.used_bytes += size
        try:
            yield
        finally:
            self._memory.give_back(size)

    async def _publish_waiting(self) -> None:
        """Publish in order what had to wait."""
        waiting = self._waiting
        while waiting:
            event, size, in_turns = waiting[0]
            try:
                if self._wants_topic(event):
                    assert isinstance(event.message, m.Publish)
                    await self._broker.administration.create_default_topic(event.message.target)
                full = await self._try_waiting(event, in_turns)
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

    async def _try_waiting(self, event: Event, in_turns: bool) -> Topic | None:
        """As `_try`, in turns where it takes long. Raises LinnError."""
        if not (in_turns or self._takes_long(event)):
            try:
                return self._try(event)
            except TakesLong:
                pass
        await self._publish_in_turns(event)
        return None


def _held_bytes(event: Event) -> int:
    """What a publish takes while it waits."""
    publish = event.message
    assert isinstance(publish, m.Publish)
    return WAITING_BYTES + len(publish.target) + sum([BATCH_BYTES + batch.size for batch in event.batches])


def _wants_returned(publish: m.Publish) -> bool:
    return publish.mandatory and publish.to_exchange


def _without_room(destinations: Sequence[Destination]) -> Destination | None:
    """A destination that has no room. A topic is asked once, for its largest part: what it holds has to be added up."""
    if len(destinations) > 1:
        largest = {each.topic: each for each in sorted(destinations, key=_size)}
        destinations = [*largest.values()]
    for each in destinations:
        if not each.topic.has_room(each.batch):
            return each
    return None


def _size(destination: Destination) -> int:
    return destination.batch.size
