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

from linn.core.batch.batch import TRANSACTIONAL, BatchLimits, RecordBatch
from linn.core.batch.format import Formats
from linn.core.batch.steps import TURN_S, Steps
from linn.core.env.env import Spawn
from linn.core.errors.auth import Forbidden
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import BrokerStopping, LinnError, TopicUnknown
from linn.core.log.mark import Mark
from linn.core.log.producers import numbers_of
from linn.core.loop.long_work import LongTask, LongWork
from linn.core.loop.memory_budget import ReceivedShare
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks
from linn.core.publish.lane_order import LaneOrder
from linn.core.publish.passed_on import PassedOn
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
                if self.links is None or not error.leader:
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

        Raises StorageError: a destination could not store it; earlier ones have. TransactionError, NotEnoughReplicas:
        nothing was stored.
        """
        if self.links is not None:
            _check_replicas(request, planned)
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


def _check_replicas(request: PublishRequest, planned: Sequence[Planned]) -> None:
    """Check that enough replicas follow to confirm a publish. Raises NotEnoughReplicas."""
    for plan in planned:
        for destination in plan.destinations:
            topic = destination.topic
            if topic.logs is not None and topic.semantics.confirm_when(request.acks) is ConfirmWhen.REPLICATED:
                topic.logs.check_enough()


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
        self._passed_on: PassedOn | None = None
        """Set with the first publish that goes on to another broker."""
        self.waiting_bytes = 0
        """Bytes of waiting publishes and of those at another broker, which count in the share `received` and against
        the connection's limit.
        """

    @property
    def is_waiting(self) -> bool:
        """Whether a publish waits, or is at another broker."""
        return bool(self._waiting or self._is_passing())

    def close(self) -> None:
        """Drop waiting publishes: the connection is gone."""
        self._memory.give_back(self.waiting_bytes)
        self.waiting_bytes = 0
        self._waiting.clear()
        if self._passed_on is not None:
            self._passed_on.close()
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
            if (
                not self._waiting
                and (self._passed_on is None or not self._passed_on.count)
                and (publisher.make_topic is None or not publisher.lacks_topic(request))
            ):
                if order.missing and not self._is_led_elsewhere(request):
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
            return self._links is not None and error.leader > 0
        return isinstance(error, Forbidden) and bool(error.undecided)

    def count_error(self, topic: str | None, error: LinnError) -> None:
        """Count, for the metrics, a request that was refused before it came here: to a topic, or an exchange (None)."""
        self._publisher.count_error(topic, error)

    def _refuse(self, request: PublishRequest, ticket: int, error: LinnError) -> None:
        self._publisher.count_refused(request, error)
        order = self._publisher.order
        if self._links is not None and self._is_led_elsewhere(request):
            order = self._elsewhere(self._links).order
        order.refused(request, error)
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
            first = waiting[0]
            is_done = True
            try:
                if not self._is_led_elsewhere(first.request):
                    if self._passed_on is not None:
                        await self._passed_on.until_none()
                    self._publisher.order.check(first.request)
                # No checkpoint between the two: what is stored is answered.
                stored = await self._publisher.carry_out(first.request, self._access, first.begun)
                self._answers.stored(first.ticket, *stored)
                self._publisher.order.settled(first.request)
            except NotLeader as error:
                is_done = not await self._pass_on(first, error)
            except LinnError as error:
                self._refuse(first.request, first.ticket, error)
            except Exception as error:
                self._answers.failed(first.ticket, error)
            waiting.popleft()
            if is_done:
                self._done(first)

    def _is_led_elsewhere(self, request: PublishRequest) -> bool:
        topic = None if request.to_exchange else self._publisher.catalog.topics.get(request.target)
        return topic is not None and topic.led_by is not None

    def _elsewhere(self, links: PublishLinks) -> PassedOn:
        if self._passed_on is None:
            self._passed_on = PassedOn(links, self._principal, self._owned)
        return self._passed_on

    def _is_passing(self) -> bool:
        return self._passed_on is not None and self._passed_on.count > 0

    async def _pass_on(self, first: _Waiting, error: NotLeader) -> bool:
        """Let the broker that leads the topic carry out a publish; returns whether it is under way, or was refused.

        Behind an exchange it is the leader of one of the topics, which refuses the publish unless it leads all of them.
        """
        request = first.request
        if self._links is None or not error.leader:
            self._refuse(request, first.ticket, error)
            return False
        passed_on = self._elsewhere(self._links)

        def told(outcome: Sequence[PublishResult] | LinnError) -> None:
            if isinstance(outcome, LinnError):
                self._publisher.count_refused(request, outcome)
                self._answers.refused(first.ticket, outcome)
            else:
                self._answers.stored(first.ticket, outcome, [])
            self._done(first)

        try:
            await passed_on.begin(error.leader, request, told)
        except LinnError as refusal:
            self._publisher.count_refused(request, refusal)
            self._answers.refused(first.ticket, refusal)
            return False
        except Exception as bug:
            self._answers.failed(first.ticket, bug)
            return False
        return True

    def _done(self, waiting: _Waiting) -> None:
        self.waiting_bytes -= waiting.bytes
        self._memory.give_back(waiting.bytes)
        self._answers.room()


async def forwarded(
    links: PublishLinks, leader: int, request: PublishRequest, principal: Principal, owned: OwnedProducers
) -> Sequence[PublishResult]:
    """Let the broker that leads a topic carry out a publish. Raises as `PublishLinks.publish`."""
    return await links.publish(leader, request, principal, owned.keys_of(request.batches))


def _held_bytes(request: PublishRequest) -> int:
    """The memory that a publish takes while it waits."""
    return WAITING_BYTES + len(request.target) + sum([BATCH_BYTES + batch.size for batch in request.batches])


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
