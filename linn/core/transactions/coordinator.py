"""TransactionCoordinator: all transactions of the broker, their log, and the marks that end them everywhere.

Laws:
- The decision to commit is one record of the log, written once the transaction's writes are as durable as their storage
  makes them. It is announced, and marked in the partitions, only once it is committed. So is an abort.
- A logged decision is carried out, whatever fails meanwhile: markers that a full disk refuses are retried, and after a
  restart the open transactions of each partition's log are ended by the decisions.
- A transaction that is not decided goes on after a restart. After a power loss, which may have taken a part of it, it
  is aborted.
- A transaction ends before the next one of its name begins.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import trio

from linn.core.delivery.settlement import Settlement
from linn.core.env.alarm import Alarm
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    LimitExceeded,
    LinnError,
    LogClosed,
    SequenceTaken,
    StorageError,
    SyncFailed,
    TransactionAborted,
    TransactionBusy,
    TransactionError,
    TransactionUnknown,
)
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.groups.group import check_name
from linn.core.groups.member import GroupMember
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.queue.consumer import QueueConsumer
from linn.core.topics.topic import Topic
from linn.core.transactions.ending import Ending, marking, missing_marks
from linn.core.transactions.event import (
    Aborted,
    Committed,
    Named,
    NameEvent,
    NameForgotten,
    TransactionEvent,
)
from linn.core.transactions.holder import holder_of, transaction_of
from linn.core.transactions.left_open import LeftOpen
from linn.core.transactions.log import MakeLog, TransactionLog
from linn.core.transactions.producer import (
    AbortReason,
    Awaits,
    Owner,
    RequestedEnd,
    State,
    TransactionalProducer,
    TransactionId,
    Work,
)

NAMES_MAX = 10_000
"""Limit of the known names: each takes about a kilobyte, and a record of the snapshot."""
ALL_BRANCHES_MAX = 200_000
"""Limit of the producers that may write in transactions: each takes about 200 bytes."""
TIMEOUT_S_MAX = 3_600.0
"""Longest time for which a transaction may be open: it holds back all readers of its partitions."""

logger = logging.getLogger("linn.transactions")


class TransactionCoordinator:
    """All transactions. Without a log, they are kept in memory."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        groups: GroupCoordinator,
        fresh_id: Callable[[], int],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        """`fresh_id` returns an unused producer id."""
        self.names: dict[str, TransactionalProducer] = {}
        self.log = TransactionLog(self._snapshot, clock, spawn)
        self.committed = 0
        """Commits since the start."""
        self.aborted = dict.fromkeys(AbortReason, 0)
        """Aborts since the start, by reason."""
        self._topics = topics
        self._groups = groups
        self._fresh_id = fresh_id
        self._clock = clock
        self._spawn = spawn
        self._by_id: dict[int, TransactionalProducer] = {}
        """State of each name, by the name's producer id."""
        self._by_branch: dict[int, TransactionalProducer] = {}
        self._open: dict[TransactionalProducer, None] = {}
        """Names with an open transaction, oldest first."""
        self._endings: dict[TransactionalProducer, Ending] = {}
        """Ends under way: commits whose decision may not be durable yet, and markers that are written in steps."""
        self._alarm = Alarm(clock, spawn, self._abort_overdue)
        self._left = LeftOpen({}, groups, (), self._name_at, self._begin)
        """Transactions that earlier starts have left open, until they are marked."""
        self._closed = False

    # --- recovery ----------------------------------------------------------------------------------------------------

    async def recover(self, state: StateLog | None, make_log: MakeLog | None, boot_id: str = "") -> None:
        """Rebuild the names from the log, and end or continue all transactions that are open in a log or a queue. All
        topics are open.

        `state`: the log, if it exists. `make_log` creates it when the first name is opened; None: never. `boot_id`: the
        boot of the machine; "": unknown.

        Raises LogCorrupt, StorageError.
        """
        self.log.open(state, make_log, boot_id)
        async for is_restart, events in self.log.replay():
            if is_restart:
                self.names.clear()
            for event in events:
                self._replay(event)
        if self.log.has_lost_tail:
            for producer in self.names.values():
                lost = producer.number, "a power loss may have taken a part of it", producer.unused_number - 1
                producer.apply(Aborted(producer.name, *lost))
        self.log.note_start()
        self._by_id = {producer.producer_id: producer for producer in self.names.values()}
        self._by_branch = {branch: producer for producer in self.names.values() for branch in producer.branches}
        self._left = LeftOpen(self._topics, self._groups, self.names.values(), self._name_at, self._begin)
        try:
            self._end_left_open()
        except StorageError as error:
            logger.error("transactions that a restart ended are not marked yet: %(error)s", log_fields(error))
            self._spawn(self._end_left_open_later)

    def _replay(self, event: NameEvent) -> None:
        if isinstance(event, NameForgotten):
            self.names.pop(event.name, None)
        else:
            if event.name not in self.names:
                self.names[event.name] = TransactionalProducer(event.name)
            self.names[event.name].apply(event)

    def _name_at(self, producer_id: int) -> TransactionalProducer | None:
        return self._by_branch.get(producer_id) or self._by_id.get(producer_id)

    def _end_left_open(self) -> None:
        """End and continue what earlier starts have left open. Raises StorageError: not all is marked."""
        self._left.end()
        self._left.unmarked.clear()

    async def _end_left_open_later(self) -> None:
        while not self._closed:
            await self._clock.sleep(ROOM_RETRY_S)
            with contextlib.suppress(StorageError):
                self._end_left_open()
                return

    # --- names -------------------------------------------------------------------------------------------------------

    async def open(self, name: str, timeout_s: float, user: str, owner: Owner | None = None, opening: int = 0) -> Named:
        """Take over a name: its previous owner is fenced, and its open transaction is aborted. Durable when this
        returns.

        `user`: the user of the client that asks. `owner`: take it over only from this client, for example after a
        restart of the broker. A client that repeats a request because it got no answer gets the same opening again.
        `opening`: the client's random number; a repeated number takes nothing over. 0: none.

        Raises DeliveryError, LimitExceeded, TransactionBusy, TransactionFenced, StorageError.
        """
        check_name(name, "transaction")
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise LimitExceeded(f"a transaction may be open for up to {TIMEOUT_S_MAX:g} seconds, not {timeout_s:g}")
        await self.log.ensure()
        while True:
            # No other task runs between here and the takeover.
            if name not in self.names:
                self._forget_idle()
            producer = self.names.get(name) or TransactionalProducer(name)
            named = producer.repeated_opening(user, owner, opening)
            if producer.is_ending or producer in self._left.unmarked:
                raise TransactionBusy(f'the last transaction of "{name}" is being ended')
            if named is not None or producer.state is State.IDLE:
                break
            ending = self._abort(producer, AbortReason.FENCED, "another client took over its name")
            if ending is not None:
                await ending.wait()
        if named is None:
            named = producer.opening(self._fresh_id(), self._clock.now_ms(), owner, user, timeout_s, opening)
            self.log.write(named)
            for branch in producer.branches:
                self._by_branch.pop(branch, None)
            self._by_id.pop(producer.producer_id, None)
            producer.apply(named)
            self.names[name] = self._by_id[producer.producer_id] = producer
        await self.log.until_committed()
        return named

    def _forget_idle(self) -> None:
        """Make room for another name. Raises LimitExceeded."""
        if len(self.names) < NAMES_MAX:
            return
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        idle = [
            producer
            for producer in self.names.values()
            if producer.is_unused(now_ms, now_s) and producer not in self._left.unmarked
        ]
        if not idle:
            raise LimitExceeded(
                f"{NAMES_MAX:,} names of transactions were used in the last hour, and this would be another one"
            )
        for producer in idle:
            del self.names[producer.name]
            self._by_id.pop(producer.producer_id, None)
            for branch in producer.branches:
                self._by_branch.pop(branch, None)
            self.log.write(NameForgotten(producer.name))

    def owned(self, owner: Owner) -> TransactionalProducer:
        """The transactions of a client. Raises TransactionUnknown, TransactionFenced."""
        producer = self._by_id.get(owner.producer_id)
        if producer is None:
            raise TransactionUnknown(f"no client has opened transactions with producer {owner.producer_id}")
        producer.check_owner(owner)
        return producer

    def name_with(self, producer_id: int) -> str:
        """The name of transactions with this producer id; "": none."""
        return named.name if (named := self._by_id.get(producer_id)) is not None else ""

    def add_branch(self, owner: Owner, branch: int) -> Awaits:
        """Let a producer write in a client's transactions; returns what to wait for.

        Raises TransactionError, LimitExceeded, StorageError.
        """
        producer = self.owned(owner)
        if self._by_branch.get(branch, producer) is not producer:
            raise TransactionError(f"producer {branch} writes in other transactions")
        if branch not in self._by_branch and len(self._by_branch) >= ALL_BRANCHES_MAX:
            raise LimitExceeded(
                f"{ALL_BRANCHES_MAX:,} producers may write in transactions, and this would be another one"
            )
        if branch not in producer.branches:
            added = producer.adding(branch)
            self.log.write(added)
            producer.apply(added)
            self._by_branch.pop(added.dropped, None)
            self._by_branch[branch] = producer
        return self.log.awaits()

    # --- work --------------------------------------------------------------------------------------------------------

    def check_write(self, branch: int, number: int, partitions: Iterable[Partition]) -> None:
        """Check that a batch may be stored in these partitions. Raises TransactionError, LimitExceeded."""
        producer = self._by_branch.get(branch)
        if producer is None:
            raise TransactionUnknown(f"producer {branch} writes in no transaction: it was fenced, or never announced")
        producer.check_current(number)
        producer.check_room()
        for partition in partitions:
            opened = partition.open_transactions().get(branch)
            if opened is not None and opened.number != number:
                raise TransactionBusy(
                    f"transaction {opened.number} of producer {branch} is not marked in {partition.id}"
                )

    def wrote(self, branch: int, topic: Topic, partition: Partition, end: int) -> None:
        """Record a stored batch, after `check_write`."""
        producer = self._by_branch[branch]
        self._begin(producer)
        producer.work.add(branch, topic, partition, end)

    def commit_offset(
        self,
        transaction: TransactionId,
        member: GroupMember,
        partition: int,
        epoch: int,
        offset: int,
        text: str = "",
    ) -> Awaits:
        """Let a group's member commit an offset with a transaction; returns what to wait for.

        Raises TransactionError, GroupFenced, PartitionUnknown, OffsetOutOfRange, LimitExceeded, StorageError.
        """
        producer = self.owned(transaction.owner)
        producer.check_current(transaction.number)
        group, topic = member.group.name, member.seat[1]
        producer.check_offset(group, topic, partition)
        part = producer.producer_id, producer.number
        awaits = member.pend(part, partition, epoch, offset, text)
        producer.work.offsets[group, topic, partition] = offset
        producer.work.pending[group, topic] = awaits
        self._begin(producer)
        return awaits

    def hold(self, transaction: TransactionId, consumer: QueueConsumer, settlements: Sequence[Settlement]) -> Awaits:
        """Move leased records from their leases into a transaction, until it ends: its commit acks them. Returns what
        to wait for.

        Raises TransactionError, DeliveryNotCurrent, LimitExceeded: none of them was moved, or only the settlements
        before the wrong one, which an abort returns. StorageError: some are held, and a commit writes their event.
        """
        producer = self.owned(transaction.owner)
        producer.check_current(transaction.number)
        holder = holder_of(producer.producer_id, producer.number)
        for settlement in settlements:
            producer.check_room()
            partition_queue = consumer.hold(settlement, holder)
            self._begin(producer)
            producer.work.held[partition_queue] = None  # Held even if their event can't be written now.
            producer.work.held[partition_queue] = partition_queue.log.flush()
        return [awaited for awaited in producer.work.held.values() if awaited is not None]

    def _begin(self, producer: TransactionalProducer) -> None:
        if producer.begin(self._clock.monotonic()):
            self._open[producer] = None
            self._alarm.set(producer.began_s + producer.timeout_s)

    # --- the end -----------------------------------------------------------------------------------------------------

    def end_nowait(self, transaction: TransactionId, end: RequestedEnd) -> Ending | None:
        """End a transaction: commit the writes of some producers, or abort it. Can be repeated.

        A commit with the last sequence and identity repeats the last commit: this transaction is aborted.

        Returns the end to wait for; None: it has ended. Raises TransactionError; StorageError: it is still open.
        """
        number, (is_commit, branches, sequence, identity) = transaction.number, end
        producer = self._by_id.get(transaction.producer_id)
        if producer is not None and producer.was_committed(number):
            if is_commit:
                return self._endings.get(producer)
            raise TransactionError(f'transaction {number} of "{producer.name}" was committed')
        if producer is not None and not is_commit and producer.has_aborted(number):
            return None
        producer = self._producer_to_end(transaction)
        if producer in self._left.unmarked:
            raise TransactionBusy(f'the last transaction of "{producer.name}" is being ended')
        if not is_commit or self._has_taken_effect(producer, sequence, identity):
            return self._abort(producer, AbortReason.ASKED)
        producer.check_branches(branches)
        producer.work.sequence, producer.work.identity = sequence, identity
        is_durable = not producer.work.pending and not producer.unsynced and producer.unmarked is None
        if is_durable and not any(True for _ in missing_marks(producer, branches)):
            decision = producer.decided(branches)
            self.log.write(decision)
            work = self._record_decision(producer, decision)
            if self.log.is_committed:
                self.committed += 1
                return self._mark(producer, work)
            return self._start_ending(producer, lambda: self._finish(producer, work))
        before, producer.state = producer.state, State.ENDING
        return self._start_ending(producer, lambda: self._commit(producer, branches, before))

    def _has_taken_effect(self, producer: TransactionalProducer, sequence: int, identity: str) -> bool:
        """Whether a commit repeats the last one. Raises SequenceTaken: it contradicts that commit, and is aborted."""
        try:
            return producer.has_taken_effect(sequence, identity)
        except SequenceTaken:
            self._abort(producer, AbortReason.ASKED)
            raise

    def _start_ending(self, producer: TransactionalProducer, commit: Callable[[], Awaitable[None]]) -> Ending:
        ending = self._endings[producer] = Ending()

        async def run() -> None:
            try:
                await commit()
            except LinnError as error:
                ending.error = error
                if isinstance(error, SyncFailed):
                    raise
            finally:
                if self._endings.get(producer) is ending:  # A commit that becomes an abort has a new one.
                    del self._endings[producer]
                ending.event.set()

        self._spawn(run)
        return ending

    def _producer_to_end(self, transaction: TransactionId) -> TransactionalProducer:
        producer_id, epoch, user, number = transaction
        producer = self._by_id.get(producer_id)
        if producer is None:
            raise TransactionAborted(f"transaction {number} of producer {producer_id} is not known: it was aborted")
        if epoch == producer.epoch and user == producer.user:
            producer.check_current(number)
        producer.check_owner(transaction.owner)
        return producer

    async def _commit(self, producer: TransactionalProducer, branches: Collection[int], before: State) -> None:
        """Decide, mark and finish. Raises StorageError: it is in the state `before`."""
        try:
            await self.until_marked(producer)
            for mark, end in list(missing_marks(producer, branches)):
                await mark.wait(end)
            if self.log.is_synced:
                for topic in sorted({*producer.unsynced, *(topic for _, topic in producer.work.pending)}):
                    await self._groups.make_durable(topic)
            decision = producer.decided(branches)
            self.log.write(decision)
        except (LinnError, trio.Cancelled):
            producer.state = before
            if before is State.OPEN:
                self._alarm.set(producer.began_s + producer.timeout_s)
            raise
        await self._finish(producer, self._record_decision(producer, decision))

    def _record_decision(self, producer: TransactionalProducer, decision: Committed) -> Work:
        self._open.pop(producer, None)
        return producer.end(decision)

    async def until_marked(self, producer: TransactionalProducer) -> None:
        """Wait until the last transaction of a name is marked in all topics of other brokers. Here there are none."""

    async def _finish(self, producer: TransactionalProducer, work: Work) -> None:
        """Wait until a decision is durable, then mark it."""
        await self.log.until_committed()
        self.committed += 1
        await self._mark_until_done(producer, work)

    def _abort(self, producer: TransactionalProducer, reason: AbortReason, why: str = "") -> Ending | None:
        """Abort the present transaction. `why`: the reason for its owner; "" if it asked.

        Returns the end to wait for; None: it has ended. Raises StorageError: it is as it was.
        """
        abort = Aborted(producer.name, producer.number, why)
        self.log.write(abort)
        self._open.pop(producer, None)
        self.aborted[reason] += 1
        work = producer.end(abort)
        if self.log.is_committed:
            return self._mark(producer, work)

        async def finish() -> None:
            await self.log.until_committed()
            if (marking := self._mark(producer, work)) is not None:
                await marking.wait()

        return self._start_ending(producer, finish)

    def _mark(self, producer: TransactionalProducer, work: Work) -> Ending | None:
        """Mark the end of the present transaction. Returns the end to wait for if the markers are written in steps.

        Markers that a full disk refuses are left to a background task.
        """
        try:
            if not any(True for _ in marking(producer, work, self._topics, self._groups)):
                producer.ended()
                return None
        except StorageError as error:
            logger.warning("an ended transaction is not marked yet: %(error)s", log_fields(error))
            self._spawn(lambda: self._mark_until_done(producer, work))
            return None
        return self._start_ending(producer, lambda: self._mark_until_done(producer, work))

    async def _mark_until_done(self, producer: TransactionalProducer, work: Work) -> None:
        while not self._closed:
            try:
                for _ in marking(producer, work, self._topics, self._groups):
                    await trio.lowlevel.checkpoint()
            except LogClosed:
                return
            except StorageError as error:
                logger.warning("an ended transaction is not marked yet: %(error)s", log_fields(error))
                await self._clock.sleep(ROOM_RETRY_S)
                continue
            producer.ended()
            return

    def _abort_overdue(self) -> float | None:
        now_s = self._clock.monotonic()
        for producer in [producer for producer in self._open if producer.began_s + producer.timeout_s <= now_s]:
            if producer.state is State.OPEN:
                text = 'transaction %(number)d of "%(name)s" was open for %(timeout)g s and is aborted'
                logger.warning(text, {"number": producer.number, "name": producer.name, "timeout": producer.timeout_s})
                why = f"it was open for longer than its timeout of {producer.timeout_s:g} s"
                try:
                    self._abort(producer, AbortReason.TIMEOUT, why)
                except StorageError as error:
                    logger.warning("an abort waits for the disk: %(error)s", log_fields(error))
                    return now_s + ROOM_RETRY_S
        deadlines = [producer.began_s + producer.timeout_s for producer in self._open if producer.state is State.OPEN]
        return min(deadlines, default=None)

    # --- operators ---------------------------------------------------------------------------------------------------

    def open_now(self) -> list[TransactionalProducer]:
        """The names with an open transaction, oldest first."""
        return list(self._open)

    def opened_s(self, branch: int) -> float | None:
        """The monotonic time at which a producer's present transaction began; None if unknown."""
        producer = self._by_branch.get(branch)
        return None if producer is None or producer.state is State.IDLE else producer.began_s

    def named(self, name: str) -> TransactionalProducer:
        """The state of a name. Raises TransactionUnknown."""
        producer = self.names.get(name)
        if producer is None:
            raise TransactionUnknown(f'no transactions have the name "{name[:80]}"')
        return producer

    def opened(self, name: str) -> TransactionalProducer:
        """The state of a name with an open transaction. Raises TransactionUnknown, TransactionBusy."""
        producer = self.named(name)
        if producer.state is State.IDLE:
            raise TransactionUnknown(f'"{name}" has no open transaction: it is idle')
        if producer.is_ending:
            raise TransactionBusy(f'the end of the transaction of "{name}" is under way: it can\'t be aborted now')
        return producer

    def name_of(self, holder: str) -> str:
        """The name whose transaction is this holder of records; "" if unknown."""
        producer = self._by_id.get(transaction_of(holder).producer_id)
        return "" if producer is None else producer.name

    def abort_by_operator(self, name: str) -> None:
        """Abort a name's open transaction. Raises TransactionUnknown, TransactionBusy."""
        self._abort(self.opened(name), AbortReason.OPERATOR, "an operator aborted it")

    # --- the log ---

    def _snapshot(self) -> list[TransactionEvent]:
        return [event for producer in self.names.values() for event in producer.snapshot()]

    def stop(self) -> None:
        """End nothing more. Open transactions go on at the next start."""
        self._closed = True
        self._alarm.cancel()
