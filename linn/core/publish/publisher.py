"""Publishing: one pipeline, from the batches of a request to the partitions that store them.

A publish is planned by a generator (`Plan`). It is driven where the request is read, for a bounded time; if it has not
ended by then, a task continues it, in turns with all other long work. Any wait (for a topic to be made, for room in a
topic, for a turn) happens in that task, and later publishes of the lane wait behind it.

Laws: publishes of one lane are stored in the order in which they came. A publish that is refused has stored nothing.
If only some of its records are refused, these are stored nowhere, and the others as if they had come without them.
A batch whose producer id its session does not own is refused before anything else: it changes nothing of the owner's
order.
Between the check of a plan and the end of storing it no other task runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, TypeVar

import trio

from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, BatchLimits, RecordBatch
from linn.core.batch.format import Formats
from linn.core.batch.steps import TURN_S, Steps
from linn.core.env.env import Spawn
from linn.core.errors.auth import Forbidden
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import BrokerStopping, LinnError, ProducerOutOfOrder, TopicUnknown
from linn.core.log.mark import Mark
from linn.core.log.producers import numbers_of
from linn.core.loop.long_work import LongTask, LongWork
from linn.core.loop.memory_budget import ReceivedShare
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks
from linn.core.publish.plan import Destination, Plan, Planned, recognize, without_room
from linn.core.publish.producer_ids import PRODUCER_BITS, OwnedProducers
from linn.core.publish.request import PublishAnswers, PublishRequest, PublishResult
from linn.core.queue.semantics import Acks, ConfirmWhen
from linn.core.routing.budget import PublishBudget
from linn.core.routing.default_exchange import DEFAULT_EXCHANGE
from linn.core.security.access import Access
from linn.core.topics.catalog import Catalog
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.rights import CONFIGURE, EXCHANGE, PUBLISH, SEE, TOPIC

INLINE_STEPS_MAX = 64
"""Limit of the steps that a request may take where it is read, if they fit into a turn: small publishes need one to
three.
"""
WAITING_BYTES = BATCH_BYTES = 512
"""Memory that a waiting publish takes besides its data, and that each of its batches takes."""

BegunPlan = tuple[Plan, Steps[list[Planned]]]
"""A plan, and its remaining steps."""
Stored = tuple[list[PublishResult], list[tuple[Mark, int]]]
"""The result of each batch; and the marks that confirm them, each by passing its offset."""


class Publisher:
    """The part of publishing that all lanes of a broker share."""

    def __init__(
        self,
        catalog: Catalog,
        limits: BatchLimits,
        formats: Formats,
        long_work: LongWork,
        memory: ReceivedShare,
        make_topic: Callable[[str], Awaitable[None]] | None,
        transactions: TransactionCoordinator,
    ) -> None:
        """`make_topic` makes a missing topic that is published to; None: such a publish is refused."""
        self.catalog = catalog
        self.limits = limits
        self.formats = formats
        self.long_work = long_work
        self.memory = memory
        self.make_topic = make_topic
        self.transactions = transactions
        self.parts_turn = trio.Lock()
        """Held by the publish that makes parts while the share `received` is over, see `parts_memory`."""
        self.order = LaneOrder()
        self.errors: dict[str, int] = {}
        """Failed requests, by the error's code."""
        self.unrouted_batches = 0
        """Batches that were published and stored nowhere."""
        self.links: PublishLinks | None = None
        """The links to the other brokers of the cluster, set by the composition root; None: there are none."""

    def lane(
        self, answers: PublishAnswers, spawn: Spawn, principal: Principal, owned: OwnedProducers, *, forwards: bool
    ) -> PublishLane:
        """Make a lane for the publishes of one connection. `spawn` starts a task that ends with the connection.

        `forwards`: whether publishes may go on to the broker that leads their topic.
        """
        return PublishLane(self, answers, spawn, principal, owned, self.links if forwards else None)

    async def publish(
        self, request: PublishRequest, principal: Principal, owned: OwnedProducers
    ) -> Sequence[PublishResult]:
        """Publish, and wait until everything is confirmed.

        Raises LinnError. Cancellation: batches stored by then stay.
        """
        access = principal.access
        for batch in request.batches:
            if batch.producer_id and batch.producer_id >> PRODUCER_BITS not in owned.blocks:
                raise self.foreign(request, batch, owned)
        with self._counted(_held_bytes(request)):
            try:
                results, awaits = await self.carry_out(request, access)
            except NotLeader as error:
                if self.links is None or not _is_led(request, error):
                    raise
                return await forwarded(self.links, error.leader, request, principal, owned)
            except LinnError as error:
                self.count_refused(request, error)
                raise
        for mark, end in awaits:
            await mark.wait(end)
        return results

    def foreign(self, request: PublishRequest, batch: RecordBatch, owned: OwnedProducers) -> LinnError:
        """The error of a publish of a batch whose producer id the session does not own, which is counted here.

        A damaged batch gets BatchCorrupt: its id may be damaged, and its producer can send it again.
        """
        found: LinnError = owned.foreign(batch.producer_id)
        try:
            batch.verify(self.limits)
        except LinnError as error:
            found = error
        self.count_refused(request, found)
        return found

    async def carry_out(self, request: PublishRequest, access: Access, begun: BegunPlan | None = None) -> Stored:
        """Publish while other tasks take turns; returns the results and the marks that confirm them.

        `begun`: a plan whose first steps are done. Raises LinnError. Cancellation: nothing is stored.
        """
        while True:
            try:
                return await self._carry_out(request, access, begun)
            except Forbidden as error:
                if not error.undecided:
                    raise
                begun = None
                await access.decide(error.undecided)

    async def _carry_out(self, request: PublishRequest, access: Access, begun: BegunPlan | None) -> Stored:
        if self.make_topic is not None and self.lacks_topic(request):
            access.check(PUBLISH, TOPIC, request.target)
            access.check(CONFIGURE, TOPIC, request.target)
            await self.make_topic(request.target)
        is_long = begun is not None
        while True:
            full = None
            plan, steps = begun or self.begin(request, access)
            begun = None
            task = self.long_work.task(immediate=not is_long)
            with PartsMemory(plan.budget, task, self.memory, self.parts_turn) as parts:
                try:
                    planned = await parts.in_turns(steps)
                except TopicUnknown:
                    if not plan.may_have_lost_a_topic():
                        raise
                    continue
                # From here to the end of `store` no other task runs: the checks hold.
                if plan.is_current():
                    planned = recognize(request, planned)
                    full = without_room(planned, access)
                    if full is None:
                        return self.store(request, planned, access)
                planned.clear()  # Drop these parts before others are made.
            if full is not None:
                await self._wait_room(request, full)

    async def _wait_room(self, request: PublishRequest, full: Destination) -> None:
        """Wait until a topic has room for a part of this size: all parts are made again then."""
        topic, part = full.topic, full.batch
        topics = self.catalog.topics
        with self._counted(0 if any(part is batch for batch in request.batches) else part.size):
            while topics.get(topic.name) is topic and not self.long_work.is_stopping and not topic.has_room(part):
                await topic.wait_room()

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        self.memory.used_bytes += size
        try:
            yield
        finally:
            self.memory.give_back(size)

    def begin(self, request: PublishRequest, access: Access) -> BegunPlan:
        """Begin a plan, if the caller may publish there. Raises BrokerStopping, Forbidden."""
        if not request.to_exchange or request.target != DEFAULT_EXCHANGE:  # The plan checks topics named for that one.
            access.check(PUBLISH, EXCHANGE if request.to_exchange else TOPIC, request.target)
        if self.long_work.is_stopping:
            raise BrokerStopping("the broker is stopping")
        plan = Plan(self.catalog, self.limits, self.formats, request, access)
        return plan, plan.made()

    def lacks_topic(self, request: PublishRequest) -> bool:
        """Whether a publish names a topic that does not exist."""
        return not request.to_exchange and request.target not in self.catalog.topics

    def count_refused(self, request: PublishRequest, error: LinnError) -> None:
        """Count a refused publish, for the metrics."""
        self.count_error(None if request.to_exchange else request.target, error)

    def count_error(self, topic_name: str | None, error: LinnError) -> None:
        """Count a failed request, for the metrics: to a topic, or to an exchange (None)."""
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        topic = self.catalog.topics.get(topic_name) if topic_name is not None else None
        if topic is not None:
            topic.publish_errors += 1

    def store(self, request: PublishRequest, planned: Sequence[Planned], access: Access) -> Stored:
        """Store a current plan; returns the results, and the marks that confirm them by each topic's semantics.

        Behind an exchange, the result names no topic that the caller may not see.

        Raises StorageError: a destination could not store it; earlier ones have. TransactionError: nothing was stored.
        """
        results: list[PublishResult] = []
        awaits: list[tuple[Mark, int]] = []
        for batch, plan in zip(request.batches, planned, strict=True):
            if batch.attributes & TRANSACTIONAL:  # It is alone in its request: nothing was stored before it.
                partitions = [each.topic.partitions[each.partition] for each in plan.destinations]
                self.transactions.check_write(batch.producer_id, batch.transaction, partitions)
            result = self._store_batch(batch, plan, request.acks, awaits)
            hides = request.to_exchange and not access.is_full
            if hides and not all(access.may(SEE, TOPIC, each.topic.name) for each in plan.destinations):
                result = PublishResult(-1, -1, result.copies, result.returned, refused=result.refused)
            results.append(result)
            for refused in plan.refused:
                self.count_refused(request, refused.error)
        return results, awaits

    def _store_batch(
        self, batch: RecordBatch, plan: Planned, acks: Acks, awaits: list[tuple[Mark, int]]
    ) -> PublishResult:
        destinations, returned, refused = plan
        copies = 0
        taken: set[int] = set()
        base_offset = -1
        numbers = numbers_of(batch) if batch.producer_id else None
        for topic, index, part, known, dropped in destinations:
            partition = topic.partitions[index]
            if dropped:
                assert numbers is not None, "only a numbered batch that was dropped comes here"
                partition.pass_over(numbers)
                continue
            if known is not None:
                base_offset, end = known, partition.repeated(known, part.offset_span)
            else:
                if len(destinations) > 1:
                    # Each log stamps its own copy; the first takes the bytes as they are.
                    if id(part) in taken:
                        part = RecordBatch(bytearray(part.message))
                    taken.add(id(part))
                base_offset = topic.append(partition, part, numbers)
                end = base_offset + part.offset_span
                if batch.attributes & TRANSACTIONAL:
                    self.transactions.wrote(batch.producer_id, topic, index, end)
            copies += part.count
            # Waits are rare: with fsync = "os" a batch is committed when it is appended.
            if partition.committed.offset < end:
                when = topic.semantics.confirm_when(acks)
                if when is not ConfirmWhen.ACCEPTED:
                    mark = partition.durable if when is ConfirmWhen.DURABLE else partition.committed
                    awaits.append((mark, end))
        if not copies and not refused:
            self.unrouted_batches += 1
        wanted = batch.count - sum([refusal.number for refusal in refused]) if refused else batch.count
        if len(destinations) == 1 and copies == wanted and base_offset >= 0:
            epoch = partition.leader_epoch if known is None else partition.log.facts.epochs.at(base_offset)
            return PublishResult(index, base_offset, copies, returned, epoch, *topic.id_halves, refused)
        return PublishResult(-1, -1, copies, returned, refused=refused)


class _Waiting(NamedTuple):
    """A publish that waits for earlier ones, for a topic, for room or for its turn."""

    request: PublishRequest
    ticket: int
    bytes: int
    begun: BegunPlan | None
    """A plan that takes long."""


class PublishLane:
    """The publishes of one connection, in order."""

    def __init__(
        self,
        publisher: Publisher,
        answers: PublishAnswers,
        spawn: Spawn,
        principal: Principal,
        owned: OwnedProducers,
        links: PublishLinks | None,
    ) -> None:
        self._principal = principal
        self._links = links
        self._publisher = publisher
        self._owned = owned
        self._memory = publisher.memory
        self._monotonic = publisher.long_work.monotonic
        self._answers = answers
        self._spawn = spawn
        self._access = principal.access
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        """Bytes of waiting publishes, which count in the share `received` and against the connection's limit."""

    @property
    def is_waiting(self) -> bool:
        """Whether a publish waits."""
        return bool(self._waiting)

    def close(self) -> None:
        """Drop waiting publishes: the connection is gone."""
        self._memory.give_back(self.waiting_bytes)
        self.waiting_bytes = 0
        self._waiting.clear()
        del self._answers, self._spawn

    def publish(self, request: PublishRequest, ticket: int) -> None:
        """Carry out a publish, or queue it behind waiting ones; `answers` gets the outcome, perhaps at once."""
        publisher, begun = self._publisher, None
        order = publisher.order
        for batch in request.batches:
            if batch.producer_id and batch.producer_id >> PRODUCER_BITS not in self._owned.blocks:
                self._answers.refused(ticket, publisher.foreign(request, batch, self._owned))
                return
        try:
            if not self._waiting and (publisher.make_topic is None or not publisher.lacks_topic(request)):
                if order.missing:
                    order.check(request)
                begun = publisher.begin(request, self._access)
                planned = self._planned_inline(begun[1])
                if planned is not None:
                    begun = None
                    if request.batches[0].producer_id:
                        planned = recognize(request, planned)
                    if without_room(planned, self._access) is None:
                        self._answers.stored(ticket, *publisher.store(request, planned, self._access))
                        if order.missing:
                            order.settled(request)
                        return
        except LinnError as error:
            if not self._can_wait(request, error):
                self._refuse(request, ticket, error)
                return
            begun = None  # Another broker, or the authorizer, is being asked: the lane waits for its answer.
        self._wait(request, ticket, begun)

    def _planned_inline(self, steps: Steps[list[Planned]]) -> list[Planned] | None:
        """Run the steps of a plan that fit into a turn; returns its result, or None if it takes longer."""
        try:
            next(steps)
            until_s = self._monotonic() + TURN_S
            for _ in range(INLINE_STEPS_MAX):
                next(steps)
                if self._monotonic() > until_s:
                    break
        except StopIteration as end:
            planned: list[Planned] = end.value
            return planned
        return None

    def _can_wait(self, request: PublishRequest, error: LinnError) -> bool:
        """Whether a publish that was refused at once may succeed in its turn."""
        if isinstance(error, NotLeader):
            return self._links is not None and _is_led(request, error)
        return isinstance(error, Forbidden) and bool(error.undecided)

    def count_error(self, topic: str | None, error: LinnError) -> None:
        """Count, for the metrics, a request that was refused before it came here: to a topic, or an exchange (None)."""
        self._publisher.count_error(topic, error)

    def _refuse(self, request: PublishRequest, ticket: int, error: LinnError) -> None:
        self._publisher.count_refused(request, error)
        self._publisher.order.refused(request, error)
        self._answers.refused(ticket, error)

    # --- waiting ---

    def _wait(self, request: PublishRequest, ticket: int, begun: BegunPlan | None) -> None:
        size = _held_bytes(request)
        self._waiting.append(_Waiting(request, ticket, size, begun))
        self.waiting_bytes += size
        self._memory.used_bytes += size
        if len(self._waiting) == 1:
            self._spawn(self._publish_waiting)

    async def _publish_waiting(self) -> None:
        """Carry out waiting publishes in order."""
        waiting = self._waiting
        while waiting:
            request, ticket, size, begun = waiting[0]
            try:
                self._publisher.order.check(request)
                # No checkpoint between the two: what is stored is answered.
                self._answers.stored(ticket, *await self._carry_out(request, begun))
                self._publisher.order.settled(request)
            except LinnError as error:
                self._refuse(request, ticket, error)
            except Exception as error:
                self._answers.failed(ticket, error)
            waiting.popleft()
            self.waiting_bytes -= size
            self._memory.give_back(size)
            self._answers.room()

    async def _carry_out(self, request: PublishRequest, begun: BegunPlan | None) -> Stored:
        """Publish here, or at the broker that leads the topic. Raises LinnError."""
        try:
            return await self._publisher.carry_out(request, self._access, begun)
        except NotLeader as error:
            if self._links is None or not _is_led(request, error):
                raise
            owned = self._principal, self._owned
            return [*await forwarded(self._links, error.leader, request, *owned)], []


def _is_led(request: PublishRequest, error: NotLeader) -> bool:
    """Whether one other broker can carry out a publish: an exchange may lead to topics of several."""
    return bool(error.leader) and not request.to_exchange


async def forwarded(
    links: PublishLinks, leader: int, request: PublishRequest, principal: Principal, owned: OwnedProducers
) -> Sequence[PublishResult]:
    """Let the broker that leads a topic carry out a publish. Raises as `PublishLinks.publish`."""
    ids = dict.fromkeys(batch.producer_id for batch in request.batches if batch.producer_id)
    return await links.publish(leader, request, principal, {id: owned.key(id) for id in ids})


def _held_bytes(request: PublishRequest) -> int:
    """The memory that a publish takes while it waits."""
    return WAITING_BYTES + len(request.target) + sum([BATCH_BYTES + batch.size for batch in request.batches])


PRODUCERS_MAX = 10_000
"""Limit of the producers with a batch to come; beyond it the order of the one that waits longest is given up."""


class LaneOrder:
    """The order of an idempotent producer's batches, over any connection, where the broker chooses their partitions.

    A partition sees a part of such a producer's sequence, with gaps, and can't tell that a batch is missing. So while a
    refused batch may still be sent again, later ones of its producer are refused as well.
    """

    __slots__ = ("missing",)

    def __init__(self) -> None:
        self.missing: dict[int, tuple[int, int]] = {}
        """(epoch, first sequence) of the earliest refused batch, by producer."""

    def check(self, request: PublishRequest) -> None:
        """Check that no earlier batch of the producer is missing. Raises ProducerOutOfOrder."""
        if self.missing:
            batch = request.batches[0]
            missing = self.missing.get(batch.producer_id)
            if missing is not None and batch.producer_epoch == missing[0] and batch.first_sequence > missing[1]:
                raise ProducerOutOfOrder(
                    f"sequence {batch.first_sequence} of producer {batch.producer_id} comes before the refused"
                    f" {missing[1]} was sent again"
                )

    def refused(self, request: PublishRequest, error: LinnError) -> None:
        """Note that a batch was refused: it is missing if it can be sent again."""
        batch = request.batches[0] if request.batches else None
        if (
            batch is None
            or not batch.producer_id
            or not batch.attributes & SCATTERED
            or isinstance(error, ProducerOutOfOrder)
        ):
            return
        if not error.retriable:
            self.settled(request)
            return
        self.missing[batch.producer_id] = (batch.producer_epoch, batch.first_sequence)
        if len(self.missing) > PRODUCERS_MAX:
            del self.missing[next(iter(self.missing))]

    def settled(self, request: PublishRequest) -> None:
        """Note that a batch was stored, or will not come again."""
        if self.missing:
            batch = request.batches[0]
            missing = self.missing.get(batch.producer_id)
            if missing is not None and (batch.producer_epoch, batch.first_sequence) >= missing:
                del self.missing[batch.producer_id]


T = TypeVar("T")


class PartsMemory:
    """The parts of one attempt of a publish. Use it in a `with` statement, and drop the parts at its end.

    Laws: the parts of all publishes together exceed the share by the parts of one publish, and one part of each other:
    while it is over, one publish continues, and the others wait with the parts that they have. The one that continues
    waits for none of them, so there is no deadlock. Of all large publishes, however many there are, one has a turn
    between two turns of all other tasks (`long_work`).
    """

    def __init__(self, budget: PublishBudget, work: LongTask, share: ReceivedShare, parts_turn: trio.Lock) -> None:
        self._budget = budget
        self._work = work
        self._share = share
        self._parts_turn = parts_turn
        self._has_turn = False
        self._held_bytes = 0

    def __enter__(self) -> PartsMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._share.give_back(self._held_bytes)
        if self._has_turn:
            self._parts_turn.release()

    async def in_turns(self, steps: Steps[T]) -> T:
        """Run steps in turns and return their result. Cancellation: they end where they are."""
        while True:
            await self._work.give_turn()
            try:
                next(steps)
            except StopIteration as end:
                self._count()
                result: T = end.value
                return result
            self._count()
            if self._share.is_over and not self._has_turn:
                await self._parts_turn.acquire()
                self._has_turn = True

    def _count(self) -> None:
        more = self._budget.parts_bytes - self._held_bytes
        self._held_bytes += more
        self._share.used_bytes += more
