"""Participant: the part of a cluster's transactions in the topics that this broker leads.

Laws:
- Nothing of a transaction is stored in a topic before the coordinator has let the topic join. A permission ends with
  the broker's leadership of the topic, and with the mark of the transaction; also one that is still on its way.
- A mark ends the open parts of its transaction and nothing else, so it can come twice. It is answered when these ends
  are committed.
- A part that is open without a permission was opened under another leader. The coordinator is asked about it from time
  to time, and an unknown one is aborted: marks that were lost with the coordinator's log hold up no reader for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.delivery.consumer import AnyConsumer
from linn.core.delivery.settlement import Settlement
from linn.core.env.env import Clock
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    LimitExceeded,
    LinnError,
    StorageError,
    SubscriptionWrongKind,
    TopicUnknown,
    TransactionAborted,
    TransactionBusy,
    TransactionFenced,
    TransactionUnknown,
)
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.groups.member import GroupMember
from linn.core.log.partition import Partition
from linn.core.queue.consumer import QueueConsumer
from linn.core.topics.catalog import Catalog
from linn.core.topics.topic import Topic
from linn.core.transactions.cluster_coordinator import TopicMarks
from linn.core.transactions.ending import MARKED_AT_ONCE
from linn.core.transactions.holder import ProducerTransaction, holder_of, transactions_in
from linn.core.transactions.producer import OFFSETS_MAX, Awaits, Owner, TopicKey, TransactionId

ASK_INTERVAL_S = 5.0
"""Pause between two questions about parts that are open without a permission: marks come without a question."""
_STEP = 100
"""Topics that are examined between two turns of other tasks."""

logger = logging.getLogger("linn.transactions")

Join = Callable[[int, int, TopicKey, Owner | None], Awaitable[None]]
"""Lets a producer write in a topic with a transaction, by its number, see `ClusterCoordinator.join`."""


class _Joining:
    """A question that is under way."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        """The epoch in which this broker leads the topic."""
        self.is_over = False
        """Whether the transaction was marked meanwhile."""


def key_of(topic: Topic) -> TopicKey:
    """The key of a topic in the transactions' log."""
    return TopicKey(topic.name, topic.id.hex)


class Participant:
    """The topics of this broker."""

    def __init__(self, catalog: Catalog, groups: GroupCoordinator, clock: Clock, join: Join) -> None:
        self._catalog = catalog
        self._groups = groups
        self._clock = clock
        self._join = join
        self._permits: dict[TopicKey, dict[int, tuple[int, int, float]]] = {}
        """(number, epoch of the topic's leader, monotonic time) by topic and producer."""
        self._joining: dict[TopicKey, dict[_Joining, tuple[int, int]]] = {}
        """Questions under way, with producer and number, by topic."""

    # --- joining -----------------------------------------------------------------------------------------------------

    def permits(self, topic: Topic, branch: int, number: int) -> bool:
        """Whether a producer may write in a topic with a transaction."""
        permit = self._permits.get(key_of(topic), {}).get(branch)
        return permit is not None and permit[:2] == (number, topic.leader_epoch)

    def opened_s(self, branch: int) -> float | None:
        """The monotonic time at which a producer was first let write in a topic; None if it may in none."""
        return min([permits[branch][2] for permits in self._permits.values() if branch in permits], default=None)

    async def join(self, topic: Topic, branch: int, number: int, owner: Owner | None = None) -> None:
        """Ask for a permission, which `permits` has then, unless something has changed meanwhile.

        Raises TransactionError, LimitExceeded, NotLeader, StorageError, PeerError.
        """
        topic.check_led()
        key, joining = key_of(topic), _Joining(topic.leader_epoch)
        self._joining.setdefault(key, {})[joining] = branch, number
        try:
            await self._join(branch, number, key, owner)
        finally:
            under_way = self._joining[key]
            del under_way[joining]
            if not under_way:
                del self._joining[key]
        topic.check_led()
        if not joining.is_over and topic.leader_epoch == joining.epoch:
            self._permits.setdefault(key, {})[branch] = number, joining.epoch, self._clock.monotonic()

    def lacking(self, batch: RecordBatch, topics: Sequence[Topic]) -> Topic | None:
        """A topic in which the batch of a transaction can't be stored before `join`; None: there is none."""
        branch, number = batch.producer_id, batch.transaction
        return next((topic for topic in topics if not self.permits(topic, branch, number)), None)

    def check_write(self, branch: int, number: int, partitions: Sequence[Partition]) -> None:
        """Check that a batch may be stored in these partitions, whose topics permit it. Raises TransactionBusy."""
        for partition in partitions:
            opened = partition.open_transactions().get(branch)
            if opened is not None and opened.number != number:
                text = f"transaction {opened.number} of producer {branch} is not marked in {partition.id}"
                raise TransactionBusy(text)

    async def settle(
        self, transaction: TransactionId, topic: Topic, consumer: AnyConsumer, settlements: Sequence[Settlement]
    ) -> Awaits:
        """Ack records of a queue, or commit offsets of a group, when a transaction is committed; returns the marks to
        wait for.

        Raises the errors of `join`; GroupFenced, DeliveryNotCurrent, OffsetOutOfRange, SubscriptionWrongKind, ...: as
        `TransactionCoordinator.hold` and `commit_offset`.
        """
        if not isinstance(consumer, QueueConsumer | GroupMember):
            raise SubscriptionWrongKind("a reader without a group has nothing to settle in a transaction")
        name, number = transaction.producer_id, transaction.number
        while not self.permits(topic, name, number):
            await self.join(topic, name, number, transaction.owner)
        if isinstance(consumer, QueueConsumer):
            return _hold(ProducerTransaction(name, number), consumer, settlements)
        awaits: Awaits = ()
        for settled in settlements:
            if len(consumer.group.pending.get((name, number), ())) >= OFFSETS_MAX:
                raise LimitExceeded(f"a transaction commits at most {OFFSETS_MAX} offsets")
            awaits = consumer.pend((name, number), settled.partition, settled.delivery_id, settled.end)
        return awaits

    # --- the end -----------------------------------------------------------------------------------------------------

    async def mark(self, marks: TopicMarks) -> None:
        """End a transaction in a topic; returns when that is committed.

        Raises TopicUnknown: the topic is deleted. NotLeader, StorageError: something is not marked.
        """
        topic = self._catalog.topics.get(marks.topic.name)
        if topic is None or key_of(topic) != marks.topic:
            raise TopicUnknown(f"there is no topic {marks.topic.name} with this id")
        topic.check_led()
        branches = dict.fromkeys(marks.commits, True) | dict.fromkeys(marks.aborts, False)
        self._forget(marks.topic, marks.number, branches)
        for _ in self._ending(topic, marks, branches):
            await trio.lowlevel.checkpoint()
        for partition in topic.written_logs():
            await partition.committed.wait(partition.log.bounds()[1])
        if marks.producer_id in branches:
            for state in topic.state_logs():
                await state.committed.wait(state.partition.log.bounds()[1])
        topic.check_led()

    def _forget(self, key: TopicKey, number: int, branches: dict[int, bool]) -> None:
        for joining, (branch, asked) in self._joining.get(key, {}).items():
            joining.is_over |= branch in branches and asked <= number
        permits = self._permits.get(key, {})
        for branch in branches:
            if branch in permits and permits[branch][0] <= number:
                del permits[branch]
        if not permits:
            self._permits.pop(key, None)

    def _ending(self, topic: Topic, marks: TopicMarks, branches: dict[int, bool]) -> Iterator[None]:
        """Mark everything, and yield to give other tasks a turn. Raises NotLeader, StorageError."""
        count = 0
        for partition in topic.written_logs():
            for branch, opened in list(partition.open_transactions().items()):
                if opened.number == marks.number and branch in branches:
                    partition.end_transaction(branch, 0, marks.number, is_commit=branches[branch])
                    count += 1
                    if count % MARKED_AT_ONCE == 0:
                        yield
        is_commit = branches.get(marks.producer_id)
        if is_commit is not None:
            self._end_settled(topic, ProducerTransaction(marks.producer_id, marks.number), is_commit=is_commit)

    def _end_settled(self, topic: Topic, part: ProducerTransaction, *, is_commit: bool) -> None:
        """End the acks and offsets of a transaction. Raises NotLeader, StorageError."""
        holder = holder_of(*part)
        for partition_queue in topic.partition_queues():
            partition_queue.end_held(holder, is_commit=is_commit)
        for name, group in list(self._groups.groups.items()):
            if group.has_pending(topic.name, part):
                self._groups.end_pending(name, topic.name, part, is_commit=is_commit)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask about parts that are open without a permission, until cancelled."""
        while True:
            await self._clock.sleep(ASK_INTERVAL_S)
            self._drop_permits()
            pending: dict[str, list[tuple[int, int]]] = {}
            for _, name, part in self._groups.pending():
                pending.setdefault(name, []).append(part)
            for count, topic in enumerate(list(self._catalog.topics.values())):
                if count % _STEP == _STEP - 1:
                    await trio.lowlevel.checkpoint()
                if topic.led_by is None:
                    await self._ask_about(topic, pending.get(topic.name, ()))

    def _drop_permits(self) -> None:
        """Drop permissions from earlier leaderships."""
        for key, permits in list(self._permits.items()):
            topic = self._catalog.topics.get(key.name)
            if topic is None or topic.led_by is not None or key_of(topic) != key:
                del self._permits[key]
                continue
            for branch in [branch for branch, (_, epoch, _) in permits.items() if epoch != topic.leader_epoch]:
                del permits[branch]

    async def _ask_about(self, topic: Topic, pending: Sequence[tuple[int, int]]) -> None:
        key, epoch = key_of(topic), topic.leader_epoch
        for branch, number in dict.fromkeys([*_open_in(topic), *pending]):
            if self.permits(topic, branch, number):
                continue
            try:
                await self.join(topic, branch, number)
            except (TransactionAborted, TransactionUnknown, TransactionFenced) as error:
                about = {"topic": topic.name, "number": number, "producer": branch} | log_fields(error)
                text = "transaction %(number)d of producer %(producer)d is aborted in topic %(topic)s: %(error)s"
                if topic.led_by is None and topic.leader_epoch == epoch and topic.name in self._catalog.topics:
                    logger.warning(text, about)
                    try:
                        await self.mark(TopicMarks(key, branch, number, (), (branch,)))
                    except StorageError as failure:
                        logger.debug("it is not marked yet: %(error)s", log_fields(failure))
            except LinnError as error:
                logger.debug("a question about a transaction has no answer: %(error)s", log_fields(error))


def _open_in(topic: Topic) -> Iterator[tuple[int, int]]:
    """(producer, number) of all open writes and acks in a topic."""
    for partition in topic.written_logs():
        yield from [(branch, opened.number) for branch, opened in partition.open_transactions().items()]
    for partition_queue in topic.partition_queues():
        if partition_queue.subscription.decided_count:
            yield from [(id, number) for _, (id, number) in transactions_in(partition_queue)]


def _hold(part: ProducerTransaction, consumer: QueueConsumer, settlements: Sequence[Settlement]) -> Awaits:
    """Move leased records into a transaction. Raises DeliveryNotCurrent, ...: only those before the wrong one are."""
    holder, awaits = holder_of(*part), dict[object, tuple[object, int] | None]()
    for settlement in settlements:
        partition_queue = consumer.hold(settlement, holder)
        awaits[partition_queue] = partition_queue.log.flush()
    return [awaited for awaited in awaits.values() if awaited is not None]  # type: ignore[misc]
