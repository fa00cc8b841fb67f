"""ClusterCoordinator: all transactions of a cluster, at the broker that leads their log. Any brokers lead their topics.

Laws:
- A topic joins a transaction before anything of the transaction is stored there, and the log says so. So a coordinator
  knows where the end has to be marked, whichever brokers lead the log and the topics by then.
- An end is kept until it is marked in every topic that has joined, and the marks are committed there. A topic joins the
  next transaction, and the next one ends, only after that.
- Every answer follows a record that was committed since the question. So a broker that leads the log no more, and does
  not know it yet, answers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, TopicUnknown, TransactionUnknown
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.core.transactions.ending import Ending
from linn.core.transactions.event import Named
from linn.core.transactions.producer import (
    AbortReason,
    Owner,
    RequestedEnd,
    State,
    TopicKey,
    TransactionalProducer,
    TransactionId,
    Unmarked,
    Work,
)

MARK_AGAIN_S = 0.1
"""Pause before an end is marked again in a topic that has no leader, or can't be reached."""
MARKED_WITHIN_S = 1.0
"""Longest time for which the answer to a decided end waits for the marks. They take milliseconds."""

logger = logging.getLogger("linn.transactions")

T = TypeVar("T")


class TopicMarks(NamedTuple):
    """The end of a transaction, as one topic is told it."""

    topic: TopicKey
    producer_id: int
    """The id of the name, under which records are held and offsets are pending."""
    number: int
    commits: Collection[int]
    """Producers whose writes count there, and `producer_id` if its acks and offsets do."""
    aborts: Collection[int]


class ClusterCoordinator(TransactionCoordinator):
    """The coordinator of a cluster, while this broker leads the log of transactions; otherwise it refuses requests."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        groups: GroupCoordinator,
        fresh_id: Callable[[], int],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        super().__init__(topics, groups, fresh_id, clock, spawn)
        self.mark: Callable[[TopicMarks], Awaitable[None]] | None = None
        """Marks an end in a topic, at whichever broker leads it. Set by the composition root."""
        self.opened_here_s: Callable[[int], float | None] = lambda _: None
        """The monotonic time at which this broker let a producer write in a topic. Set by the composition root."""
        self._refusal: LinnError | None = NotLeader("no broker leads the transactions yet")
        self._term = object()
        """Another one for each leadership."""
        self._marked = trio.lowlevel.ParkingLot()

    # --- leading -----------------------------------------------------------------------------------------------------

    async def adopt(self, partition: Partition) -> None:
        """Lead, from what the log says; it is committed. Raises LogCorrupt, NotLeader."""
        self._forget()
        self.log.open(StateLog(partition, self._clock), None, "")
        async for is_restart, events in self.log.replay():
            if is_restart:
                self.names.clear()
            for event in events:
                self._replay(event)
        self._by_id = {producer.producer_id: producer for producer in self.names.values()}
        self._by_branch = {branch: producer for producer in self.names.values() for branch in producer.branches}
        self._refusal = None
        for producer in self.names.values():
            if producer.joined:
                self._begin(producer)
            if (unmarked := producer.unmarked) is not None:
                self._tell(producer, unmarked)

    def release(self, reason: NotLeader) -> None:
        """Lead no more. What waits fails with the reason."""
        self._refusal = reason
        if self.log.state is not None:
            self.log.state.abandon(reason)
        self._forget()

    def _forget(self) -> None:
        self._term = object()
        self._alarm.cancel()
        for known in (self.names, self._by_id, self._by_branch, self._open, self._endings):
            known.clear()
        self._marked.unpark_all()

    def check_led(self) -> None:
        """Check that this broker leads the transactions. Raises NotLeader."""
        if self._refusal is not None:
            raise self._refusal

    def opened_s(self, branch: int) -> float | None:
        """See `TransactionCoordinator.opened_s`. Where another broker coordinates: when a topic here has joined."""
        began_s = super().opened_s(branch)
        return began_s if began_s is not None else self.opened_here_s(branch)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _confirmed(self, request: Callable[[], Awaitable[T]]) -> T:
        """Carry out a request; returns or raises when it is sure that this broker has led after it came."""
        self.check_led()
        since = self.log.end
        try:
            done = await request()
        except NotLeader:
            raise
        except LinnError:
            await self.log.confirm(since)
            raise
        await self.log.confirm(since)
        return done

    async def open_name(self, name: str, timeout_s: float, user: str, owner: Owner | None, opening: int) -> Named:
        """See `open`. Also raises NotLeader."""
        return await self._confirmed(partial(self.open, name, timeout_s, user, owner, opening))

    async def announce(self, owner: Owner, branch: int) -> None:
        """See `add_branch`. Also raises NotLeader."""

        async def add() -> None:
            self.add_branch(owner, branch)

        await self._confirmed(add)

    async def end(self, transaction: TransactionId, end: RequestedEnd) -> None:
        """End a transaction as `end_nowait` does, and wait for the decision. Also raises NotLeader.

        It waits until the end is marked in all topics, too, so that the client can read its records; but not for long,
        as a topic may have no leader.
        """

        async def until_decided() -> None:
            ending = self.end_nowait(transaction, end)
            if ending is not None:
                await ending.wait()

        await self._confirmed(until_decided)
        producer, term = self._by_id.get(transaction.producer_id), self._term
        with trio.move_on_after(MARKED_WITHIN_S):
            while producer is not None and self._term is term and producer.is_unmarked(transaction.number):
                await self._marked.park()

    async def join(self, branch: int, number: int, topic: TopicKey, owner: Owner | None = None) -> None:
        """Let a producer write in a topic with its present transaction. Can be repeated.

        `branch`: the name's own producer id, for acks and offsets.

        Raises TransactionError, LimitExceeded, StorageError; NotLeader: this broker leads the transactions no more, or
        does not know the topic.
        """

        async def join() -> None:
            known = self._topics.get(topic.name)
            if known is None or known.id.hex != topic.id:
                raise NotLeader(f"topic {topic.name} is not known here yet, or no more")
            producer = self._joining(branch, owner)
            while producer.unmarked is not None and topic in producer.unmarked.left:
                await self._marked.park()
                self.check_led()
                producer = self._joining(branch, owner)
            producer.check_current(number)
            joined = producer.joining(branch, topic)
            if joined is not None:
                self.log.write(joined)
                producer.apply(joined)
            self._begin(producer)

        await self._confirmed(join)

    def _joining(self, branch: int, owner: Owner | None) -> TransactionalProducer:
        producer = self._name_at(branch)
        if producer is None:
            raise TransactionUnknown(f"producer {branch} writes in no transaction: it was fenced, or never announced")
        if owner is not None:
            producer.check_owner(owner)
        return producer

    # --- the end -----------------------------------------------------------------------------------------------------

    def _abort(self, producer: TransactionalProducer, reason: AbortReason, why: str = "") -> Ending | None:
        if producer.unmarked is None:
            return super()._abort(producer, reason, why)
        before, producer.state = producer.state, State.ENDING

        async def abort() -> None:
            try:
                await self.until_marked(producer)
            finally:
                producer.state = before
            ending = super(ClusterCoordinator, self)._abort(producer, reason, why)
            if ending is not None:
                await ending.wait()

        return self._start_ending(producer, abort)

    async def until_marked(self, producer: TransactionalProducer) -> None:
        """Wait until the last transaction of a name is marked in all topics. Raises NotLeader."""
        term = self._term
        while producer.unmarked is not None and self._term is term:
            await self._marked.park()
        if self._term is not term:
            self.check_led()
            raise NotLeader("this broker has begun to lead the transactions anew")

    def _mark(self, producer: TransactionalProducer, work: Work) -> Ending | None:
        unmarked = producer.unmarked
        producer.ended()
        if unmarked is not None:
            self._tell(producer, unmarked)
        return None

    async def _mark_until_done(self, producer: TransactionalProducer, work: Work) -> None:
        self._mark(producer, work)

    def _tell(self, producer: TransactionalProducer, unmarked: Unmarked) -> None:
        """Mark the end of a transaction in all topics that have joined, at the same time."""
        for topic in list(unmarked.left):
            self._spawn(partial(self._mark_topic, producer, unmarked, topic, self._term))

    async def _mark_topic(
        self, producer: TransactionalProducer, unmarked: Unmarked, topic: TopicKey, term: object
    ) -> None:
        """Mark an end in one topic, again until it is committed there, or the topic is deleted."""
        assert self.mark is not None, "the composition root has set it"
        commits = [branch for branch in unmarked.left[topic] if branch in unmarked.counted]
        aborts = [branch for branch in unmarked.left[topic] if branch not in unmarked.counted]
        marks = TopicMarks(topic, producer.producer_id, unmarked.number, commits, aborts)
        while self._term is term and not self._closed:
            try:
                await self.mark(marks)
            except TopicUnknown:
                pass
            except LinnError as error:
                about = {"topic": topic.name, "name": producer.name} | log_fields(error)
                logger.debug('an end of "%(name)s" is not marked in topic %(topic)s yet: %(error)s', about)
                await self._clock.sleep(MARK_AGAIN_S)
                continue
            unmarked.left.pop(topic, None)
            if not unmarked.left and producer.unmarked is unmarked:
                producer.unmarked = None
            self._marked.unpark_all()
            return
