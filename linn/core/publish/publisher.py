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

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, TypeVar

import trio

from linn.core.batch.batch import TRANSACTIONAL, BatchLimits, RecordBatch
from linn.core.batch.format import Formats
from linn.core.batch.steps import Steps
from linn.core.errors.auth import Forbidden
from linn.core.errors.tree import BrokerStopping, LinnError, TopicFull, TopicUnknown
from linn.core.log.mark import Mark
from linn.core.log.producers import Numbered, is_internal, numbers_of
from linn.core.loop.long_work import LongTask, LongWork
from linn.core.loop.memory_budget import ReceivedShare
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import PublishLinks
from linn.core.publish.lane_order import LaneOrder
from linn.core.publish.passed_on import PassedOn
from linn.core.publish.plan import Plan, Planned, WantedRoom, recognize, without_room
from linn.core.publish.producer_ids import PRODUCER_BITS, OwnedProducers
from linn.core.publish.request import PublishRequest, PublishResult
from linn.core.publish.split_publish import Outcome, SplitPublish, nodes_of
from linn.core.queue.semantics import Acks, ConfirmWhen
from linn.core.routing.budget import PublishBudget
from linn.core.routing.default_exchange import DEFAULT_EXCHANGE
from linn.core.security.access import Access
from linn.core.topics.catalog import Catalog
from linn.core.topics.timing_logs import TimingLogMissing
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.core.transactions.participant import Participant
from linn.rights import CONFIGURE, EXCHANGE, PUBLISH, SEE, TOPIC

WAITING_BYTES = BATCH_BYTES = 512
"""Memory that a waiting publish takes besides its data, and that each of its batches takes."""

BegunPlan = tuple[Plan, Steps[list[Planned]]]
"""A plan, and its remaining steps."""
Stored = tuple[list[PublishResult], list[tuple[Mark, int]]]
"""The result of each batch; and the marks that confirm them, each by passing its offset."""


class StoreTurn(Protocol):
    """The order of a lane, which a plan has to wait for before it is stored."""

    def has_come(self, request: PublishRequest, nodes: frozenset[int]) -> bool:
        """Whether a publish may be stored by these brokers now; 0: this one. Raises ProducerOutOfOrder."""

    async def come(self) -> None:
        """Wait until there is no publish under way that has to be stored before."""


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
        self.joins: Participant | None = None
        """The broker's part in the transactions of its cluster, set by the composition root; None: it is alone."""
        self.open_timing: Callable[[str], Awaitable[None]]
        """Makes and opens the timing logs of a topic; set by the composition root."""
        self.links: PublishLinks | None = None
        """The links to the other brokers of the cluster, set by the composition root; None: there are none."""

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
        with self._counted(held_bytes(request)):
            try:
                (stored, awaits), split = await self.carry_out(request, access, passes_on=self.links is not None)
            except LinnError as error:
                self.count_refused(request, error)
                raise
            results: Sequence[PublishResult] = stored
            if split is not None:
                results = await self._publish_elsewhere(split, principal, owned)
        for mark, end in awaits:
            await mark.wait(end)
        return results

    async def _publish_elsewhere(
        self, split: SplitPublish, principal: Principal, owned: OwnedProducers
    ) -> Sequence[PublishResult]:
        """Let other brokers store their shares; returns the results of all.

        Raises the LinnErrors of the shares. Cancellation: they may be stored, or not.
        """
        assert self.links is not None, "a publish is split where there are links"
        passed_on, ended, outcomes = PassedOn(self.links, principal, owned), trio.Event(), list[Outcome]()

        def told(outcome: Outcome) -> None:
            outcomes.append(outcome)
            ended.set()

        try:
            await passed_on.begin(split, told)
            await ended.wait()
        finally:
            passed_on.close()
        if isinstance(outcomes[0], LinnError):
            raise outcomes[0]
        return outcomes[0]

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

    async def carry_out(
        self,
        request: PublishRequest,
        access: Access,
        begun: BegunPlan | None = None,
        turn: StoreTurn | None = None,
        *,
        passes_on: bool = False,
    ) -> tuple[Stored, SplitPublish | None]:
        """Publish while other tasks take turns; returns the results, the marks that confirm them, and the shares of
        other brokers, which are still to be passed on.

        `begun`: a plan whose first steps are done. Raises LinnError. Cancellation: nothing is stored.
        """
        while True:
            try:
                return await self._carry_out(request, access, begun, turn, passes_on=passes_on)
            except Forbidden as error:
                if not error.undecided:
                    raise
                begun = None
                await access.decide(error.undecided)

    async def _carry_out(
        self,
        request: PublishRequest,
        access: Access,
        begun: BegunPlan | None,
        turn: StoreTurn | None,
        *,
        passes_on: bool,
    ) -> tuple[Stored, SplitPublish | None]:
        if self.make_topic is not None and self.lacks_topic(request):
            access.check(PUBLISH, TOPIC, request.target)
            access.check(CONFIGURE, TOPIC, request.target)
            await self.make_topic(request.target)
        is_long = begun is not None
        while True:
            full, has_turn, lacking = None, True, None
            plan, steps = begun or self.begin(request, access, passes_on=passes_on)
            begun = None
            task = self.long_work.task(immediate=not is_long)
            with PartsMemory(plan.budget, task, self.memory, self.parts_turn) as parts:
                try:
                    planned = await parts.in_turns(steps)
                except TopicUnknown:
                    if not plan.may_have_lost_a_topic():
                        raise
                    continue
                except TimingLogMissing as missing:
                    await self.open_timing(missing.topic)
                    continue
                # From here to the end of `store` no other task runs: the checks hold.
                if plan.is_current():
                    planned = recognize(request, planned, access)
                    has_turn = turn is None or turn.has_come(request, nodes_of(planned))
                    full = without_room(planned, access)
                    lacking = self.lacks_permission(request, planned)
                    if full is None and has_turn and lacking is None:
                        stored = self.store(request, planned, access)
                        return stored, SplitPublish(request, stored[0], planned) if plan.is_split else None
                planned.clear()  # Drop these parts before others are made.
            if turn is not None and not has_turn:
                await turn.come()
            elif full is not None:
                if is_internal(request.batches[0].producer_id):  # A transfer waits at its source, which goes on.
                    raise TopicFull(f"topic {full.topic.name} is full")
                await self._wait_room(full)
            elif lacking is not None and self.joins is not None:
                batch = request.batches[0]
                await self.joins.join(lacking, batch.producer_id, batch.transaction)

    def lacks_permission(self, request: PublishRequest, planned: Sequence[Planned]) -> Topic | None:
        """A topic that has to join the transaction of a publish before it is stored; None: there is none."""
        joins, batches = self.joins, request.batches
        if joins is None or not batches or not batches[0].attributes & TRANSACTIONAL:
            return None
        return joins.lacking(batches[0], [each.topic for each in planned[0].destinations])

    async def _wait_room(self, wanted: WantedRoom) -> None:
        """Wait until a topic has room for its parts of a publish: all parts are made again then."""
        topic, size, count = wanted
        topics = self.catalog.topics
        while topics.get(topic.name) is topic and not self.long_work.is_stopping and not topic.room.takes(size, count):
            await topic.room.wait()

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        self.memory.used_bytes += size
        try:
            yield
        finally:
            self.memory.give_back(size)

    def begin(self, request: PublishRequest, access: Access, *, passes_on: bool = False) -> BegunPlan:
        """Begin a plan, if the caller may publish there. Raises BrokerStopping, Forbidden."""
        if not request.to_exchange or request.target != DEFAULT_EXCHANGE:  # The plan checks topics named for that one.
            access.check(PUBLISH, EXCHANGE if request.to_exchange else TOPIC, request.target)
        if self.long_work.is_stopping:
            raise BrokerStopping("the broker is stopping")
        plan = Plan(self.catalog, self.limits, self.formats, request, access, passes_on=passes_on, links=self.links)
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
                transactions, logs = self.joins or self.transactions, [each.log for each in plan.destinations]
                transactions.check_write(batch.producer_id, batch.transaction, logs)
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
        destinations, returned, refused, elsewhere = plan
        copies = 0
        taken = {id(each.batch) for each in elsewhere}
        base_offset = -1
        numbers = numbers_of(batch) if batch.producer_id else None
        for topic, index, part, known, dropped, is_twin, is_later in destinations:
            partition = topic.partitions[index] if not is_later else topic.timing.at(index).partition
            if dropped:
                assert numbers is not None, "only a numbered batch that was dropped comes here"
                partition.pass_over(numbers)
                continue
            if is_twin and numbers is not None:
                partition.pass_over(numbers)
            if known is not None:
                base_offset, end = known, partition.repeated(known, part.offset_span)
            else:
                if len(destinations) > 1 or taken:
                    # Each log stamps its own copy; the first takes the bytes as they are.
                    if id(part) in taken:
                        part = RecordBatch(bytearray(part.message))
                    taken.add(id(part))
                if is_later:
                    base_offset = _append_delayed(topic, index, part, numbers)
                else:
                    base_offset = topic.append(partition, part, numbers)
                end = base_offset + part.offset_span
                if batch.attributes & TRANSACTIONAL and self.joins is None:
                    self.transactions.wrote(batch.producer_id, topic, partition, end)
            copies += part.count
            # Waits are rare: with fsync = "os" a batch is committed when it is appended.
            if partition.committed.offset < end:
                when = topic.semantics.confirm_when(acks)
                if when is not ConfirmWhen.ACCEPTED:
                    # A transaction over brokers commits what was confirmed, and no leader may lose it then.
                    is_durable = when is ConfirmWhen.DURABLE and not (self.joins and batch.transaction)
                    mark = partition.durable if is_durable else partition.committed
                    awaits.append((mark, end))
        if not copies and not refused and not elsewhere:
            self.unrouted_batches += 1
        wanted = batch.count - sum([refusal.number for refusal in refused]) if refused else batch.count
        if len(destinations) == 1 and copies == wanted and base_offset >= 0:
            epoch = partition.leader_epoch if known is None else partition.log.facts.epochs.at(base_offset)
            return PublishResult(index, base_offset, copies, returned, epoch, *topic.id_halves, refused)
        if elsewhere or len({id(each.topic) for each in destinations}) != 1:
            return PublishResult(-1, -1, copies, returned, refused=refused)
        # Each partition of a topic is led in the same epoch.
        return PublishResult(-1, -1, copies, returned, partition.leader_epoch, *topic.id_halves, refused)


def _append_delayed(topic: Topic, index: int, batch: RecordBatch, numbers: Numbered | None) -> int:
    """Store a batch in a timing log. A producer that counts without gaps is known to have come to the partition."""
    timing = topic.timing.at(index).partition
    if numbers is None:
        return topic.append_delayed(timing, batch, None)
    offset = topic.append_delayed(timing, batch, numbers._replace(scattered=True))
    if not numbers.scattered:
        topic.partitions[index].pass_over(numbers)
    return offset


def _check_replicas(request: PublishRequest, planned: Sequence[Planned]) -> None:
    """Check that enough replicas follow to confirm a publish. Raises NotEnoughReplicas."""
    for plan in planned:
        for destination in plan.destinations:
            topic = destination.topic
            if topic.logs is not None and topic.semantics.confirm_when(request.acks) is ConfirmWhen.REPLICATED:
                topic.logs.check_enough()


def held_bytes(request: PublishRequest) -> int:
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
        self.held_bytes = 0

    def __enter__(self) -> PartsMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._share.give_back(self.held_bytes)
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
        more = self._budget.parts_bytes - self.held_bytes
        self.held_bytes += more
        self._share.used_bytes += more
