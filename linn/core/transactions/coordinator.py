"""TransactionCoordinator: all transactions of the broker, their log, and the marks that end them everywhere.

Laws:
- The decision to commit is one record of the log, written after everything that counts is as durable as its storage
  makes it. It is told, and marked in the partitions, only once it is committed. What was not decided is aborted, also
  by a restart; so an abort is not logged.
- A decision that was logged is carried out, whatever fails meanwhile: marks that a full disk refuses are retried, and
  after a restart each partition asks about the transactions that its log has open.
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
from linn.core.errors.texts import did_you_mean
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
from linn.core.groups.event import OffsetCommitted
from linn.core.groups.group import check_name
from linn.core.groups.member import GroupMember
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.queue.consumer import QueueConsumer
from linn.core.topics.topic import Topic
from linn.core.transactions.ending import Ending, marking, missing_marks
from linn.core.transactions.event import (
    Committed,
    Named,
    NameForgotten,
    OffsetsApplied,
    TransactionEvent,
    decode_transaction_events,
    encode_transaction_events,
)
from linn.core.transactions.holder import holder_of, owner_of, transactions_in
from linn.core.transactions.producer import AbortReason, PendingOffset, State, TransactionalProducer, Work

TRANSACTIONS_TOPIC = "__transactions"
"""The internal topic of the log. It has one partition, so that commits of many clients share one sync."""
NAMES_MAX = 10_000
"""Limit of the names that are known: each takes about a kilobyte, and a record of the snapshot."""
ALL_BRANCHES_MAX = 200_000
"""Limit of the producers that may write in transactions: each takes about 200 bytes."""
TIMEOUT_S_MAX = 3_600.0
"""Longest time for which a transaction may be open: it holds back all readers of its partitions."""

MakeLog = Callable[[], Awaitable[StateLog]]

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
        """`fresh_id` gives a producer id that nobody else has."""
        self.names: dict[str, TransactionalProducer] = {}
        self.state: StateLog | None = None
        self.committed = 0
        """Number of commits since the start."""
        self.aborted = dict.fromkeys(AbortReason, 0)
        """Number of aborts since the start, by reason."""
        self._topics = topics
        self._groups = groups
        self._fresh_id = fresh_id
        self._clock = clock
        self._spawn = spawn
        self._by_id: dict[int, TransactionalProducer] = {}
        """Names by their own producer id."""
        self._by_branch: dict[int, TransactionalProducer] = {}
        self._open: dict[TransactionalProducer, None] = {}
        """Those with an open transaction, the one opened first in front."""
        self._endings: dict[TransactionalProducer, Ending] = {}
        """Ends under way: commits whose decision may not be durable yet, and marks that take turns with other work."""
        self._alarm = Alarm(clock, spawn, self._abort_overdue)
        self._make_log: MakeLog | None = None
        self._making = trio.Lock()
        self._unmarked: set[str] = set()
        """Names whose last commit of an earlier start is not marked everywhere."""
        self._closed = False

    # --- recovery ----------------------------------------------------------------------------------------------------

    async def recover(self, state: StateLog | None, make_log: MakeLog | None) -> None:
        """Rebuild the names from the log, and end everything that a log or a queue has open. All topics are open.

        `state`: the log, if there is one already; `make_log` makes it when the first name is opened, None: never.

        Raises LogCorrupt, StorageError.
        """
        self.state, self._make_log = state, make_log
        if state is not None:
            async for record in state.replay():
                is_restart, events = decode_transaction_events(record)
                if is_restart:
                    self.names.clear()
                for event in events:
                    self._replay(event)
        self._by_id = {each.producer_id: each for each in self.names.values()}
        for each in self.names.values():
            if each.committed is not None and each.has_offsets_to_apply:
                self._hold_positions(each, each.committed)
                await self._apply_offsets(each, each.committed)
        try:
            self.end_left_open()
        except StorageError as error:
            logger.error("transactions that a restart ended are not marked yet: %(error)s", log_fields(error))
            self._spawn(self._end_left_open_later)

    def _replay(self, event: TransactionEvent) -> None:
        if isinstance(event, NameForgotten):
            self.names.pop(event.name, None)
        else:
            self._known(event.name).apply(event)

    def _known(self, name: str) -> TransactionalProducer:
        if name not in self.names:
            self.names[name] = TransactionalProducer(name)
        return self.names[name]

    def end_left_open(self) -> None:
        """Mark what an earlier start left open, by the decisions of the log.

        Raises StorageError: some of it is not marked.
        """
        committed: dict[tuple[int, int], TransactionalProducer] = {}
        for each in self.names.values():
            if each.committed is not None and (each.is_closed or each.name in self._unmarked):
                branches = each.producer_id, *each.committed.branches
                committed.update({(branch, each.committed.number): each for branch in branches})
                self._unmarked.add(each.name)
        for topic in list(self._topics.values()):
            for partition in topic.partitions.values():
                for producer_id, opened in list(partition.open_transactions().items()):
                    if not _is_present(self._by_branch.get(producer_id), opened.number):
                        owner = committed.get((producer_id, opened.number))
                        partition.end_transaction(producer_id, 0, opened.number, is_commit=owner is not None)
                        if owner is not None:
                            owner.markers.append((partition.committed, partition.log.bounds()[1]))
            for dispatch in topic.shared_dispatches():
                for holder, numbers in transactions_in(dispatch):
                    if not _is_present(self._by_id.get(numbers[0]), numbers[1]):
                        owner = committed.get(numbers)
                        marked = dispatch.end_held(holder, is_commit=owner is not None)
                        if owner is not None and marked is not None:
                            owner.markers.append(marked)
        self._unmarked.clear()

    async def _end_left_open_later(self) -> None:
        while not self._closed:
            await self._clock.sleep(ROOM_RETRY_S)
            with contextlib.suppress(StorageError):
                self.end_left_open()
                return

    # --- names -------------------------------------------------------------------------------------------------------

    async def open(self, name: str, timeout_s: float, owner: tuple[int, int] | None = None, opening: int = 0) -> Named:
        """Take over a name: whoever had it is fenced, and what it has open is aborted. Durable when this returns.

        `owner`: only if the name is still that of this producer id and epoch, after a restart of the broker say. If
        the client has opened it again already, and asks because it got no answer, it gets the same one.
        `opening`: a random number of the client's; the same one again takes nothing over. 0: none.

        Raises DeliveryError, LimitExceeded, TransactionBusy, TransactionFenced, StorageError.
        """
        check_name(name, "transaction")
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise LimitExceeded(f"a transaction may be open for up to {TIMEOUT_S_MAX:g} seconds, not {timeout_s:g}")
        if self._make_log is not None:
            async with self._making:
                self.state = self.state or await self._make_log()
        # From here on no other task runs before the name is taken over.
        if name not in self.names:
            self._forget_idle()
        each = self.names.get(name) or TransactionalProducer(name)
        named = each.opened_before(owner, opening)
        if named is None and each.state is State.OPEN:
            self._abort(each, AbortReason.FENCED, "another client took over its name")
        if each.is_ending or name in self._unmarked:
            raise TransactionBusy(f'the last transaction of "{name}" is being ended')
        if named is None:
            named = each.opening(self._fresh_id(), self._clock.now_ms(), owner)
            self._write(named)
            for branch in each.branches:
                self._by_branch.pop(branch, None)
            self._by_id.pop(each.producer_id, None)
            each.opened(named, timeout_s, opening)
            self.names[name] = self._by_id[each.producer_id] = each
        await self._until_committed()
        return named

    def _forget_idle(self) -> None:
        """Make room for another name. Raises LimitExceeded."""
        if len(self.names) < NAMES_MAX:
            return
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        idle = [
            each for each in self.names.values() if each.is_unused(now_ms, now_s) and each.name not in self._unmarked
        ]
        if not idle:
            raise LimitExceeded(
                f"{NAMES_MAX:,} names of transactions were used in the last hour, and this would be another one"
            )
        for each in idle:
            del self.names[each.name]
            self._by_id.pop(each.producer_id, None)
            for branch in each.branches:
                self._by_branch.pop(branch, None)
            if self.state is not None:
                self.state.append(encode_transaction_events([NameForgotten(each.name)]))

    def owned(self, producer_id: int, epoch: int) -> TransactionalProducer:
        """The transactions of a client. Raises TransactionUnknown, TransactionFenced."""
        each = self._by_id.get(producer_id)
        if each is None:
            raise TransactionUnknown(f"nobody has opened transactions with producer {producer_id}")
        each.check_owner(epoch)
        return each

    def add_branch(self, producer_id: int, epoch: int, branch: int) -> None:
        """Let a producer write in a client's transactions. Raises TransactionError, LimitExceeded."""
        each = self.owned(producer_id, epoch)
        if self._by_branch.get(branch, each) is not each:
            raise TransactionError(f"producer {branch} writes in other transactions")
        if branch not in self._by_branch and len(self._by_branch) >= ALL_BRANCHES_MAX:
            raise LimitExceeded(
                f"{ALL_BRANCHES_MAX:,} producers may write in transactions, and this would be another one"
            )
        self._by_branch.pop(each.add_branch(branch) or 0, None)
        self._by_branch[branch] = each

    # --- work --------------------------------------------------------------------------------------------------------

    def check_write(self, branch: int, number: int, partitions: Iterable[Partition]) -> None:
        """Check that a batch may be stored in these partitions. Raises TransactionError, LimitExceeded."""
        each = self._by_branch.get(branch)
        if each is None:
            raise TransactionUnknown(f"producer {branch} writes in no transaction: it was fenced, or never announced")
        each.check_current(number)
        each.check_room()
        for partition in partitions:
            opened = partition.open_transactions().get(branch)
            if opened is not None and opened.number != number:
                raise TransactionBusy(
                    f"transaction {opened.number} of producer {branch} is not marked in {partition.id}"
                )

    def wrote(self, branch: int, topic: Topic, partition: int, end: int) -> None:
        """Record a batch that was stored, after `check_write`."""
        each = self._by_branch[branch]
        self._begin(each)
        each.work.add(branch, topic, partition, end)

    def commit_offset(
        self, owner: tuple[int, int, int], member: GroupMember, partition: int, epoch: int, offset: int, text: str = ""
    ) -> None:
        """Have a group's member commit an offset with a transaction. `owner`: producer id, epoch and number.

        Raises TransactionError, GroupFenced, PartitionUnknown, OffsetOutOfRange, LimitExceeded.
        """
        each = self.owned(owner[0], owner[1])
        each.check_current(owner[2])
        pending = PendingOffset(member, epoch, member.checked_offset(partition, epoch, offset, text))
        each.add_offset(member.group.name, pending)
        self._begin(each)

    def hold(self, owner: tuple[int, int, int], consumer: QueueConsumer, settlements: Sequence[Settlement]) -> None:
        """Take leased records out of their leases until a transaction ends: its commit acks them.

        Raises TransactionError, DeliveryNotCurrent, LimitExceeded: none of them was taken, or those before the wrong
        one, which an abort returns; StorageError: some are held, and a commit writes their event.
        """
        each = self.owned(owner[0], owner[1])
        each.check_current(owner[2])
        holder = holder_of(each.producer_id, each.number)
        for settlement in settlements:
            each.check_room()
            dispatch = consumer.hold(settlement, holder)
            self._begin(each)
            each.work.held[dispatch] = None  # It holds them also if their event can't be written now.
            each.work.held[dispatch] = dispatch.flushed()

    def _begin(self, each: TransactionalProducer) -> None:
        if each.begin(self._clock.monotonic()):
            self._open[each] = None
            self._alarm.set(each.began_s + each.timeout_s)

    # --- the end -----------------------------------------------------------------------------------------------------

    def end_nowait(
        self,
        producer_id: int,
        epoch: int,
        number: int,
        *,
        is_commit: bool,
        branches: Collection[int] = (),
        sequence: int = 0,
        identity: str = "",
    ) -> Ending | None:
        """End a transaction: commit what these producers have written in it, or abort it. May be asked for again.

        A commit of the last `sequence`, with its `identity`, repeats it: this transaction is aborted.

        Returns what is to be waited for; None: it has ended. Raises TransactionError; StorageError: it is still open.
        """
        each = self._by_id.get(producer_id)
        if each is not None and each.was_committed(number):
            if is_commit:
                return self._endings.get(each)
            raise TransactionError(f'transaction {number} of "{each.name}" was committed')
        if each is not None and not is_commit and number < each.number:
            return None
        each = self._owner_of_end(producer_id, epoch, number)
        if not is_commit or self._has_taken_effect(each, sequence, identity):
            return self._abort(each, AbortReason.ASKED)
        each.check_branches(branches)
        each.work.sequence, each.work.identity = sequence, identity
        if not each.work.offsets and not any(True for _ in missing_marks(each, branches)):
            decision = each.decided(branches)
            self._write(decision)
            work = self._decided(each, decision)
            if self._is_committed():
                self.committed += 1
                return self._mark(each, work)
            return self._ending(each, lambda: self._finish(each, work, decision))
        before, each.state = each.state, State.ENDING
        return self._ending(each, lambda: self._commit(each, branches, before))

    def _has_taken_effect(self, each: TransactionalProducer, sequence: int, identity: str) -> bool:
        """Whether a commit repeats the last one. Raises SequenceTaken: it contradicts that one, and is aborted."""
        try:
            return each.has_taken_effect(sequence, identity)
        except SequenceTaken:
            self._abort(each, AbortReason.ASKED)
            raise

    def _ending(self, each: TransactionalProducer, commit: Callable[[], Awaitable[None]]) -> Ending:
        ending = self._endings[each] = Ending()

        async def run() -> None:
            try:
                await commit()
            except LinnError as error:
                ending.error = error
                if isinstance(error, SyncFailed):
                    raise
            finally:
                if self._endings.get(each) is ending:  # A commit that becomes an abort is replaced by its marks.
                    del self._endings[each]
                ending.event.set()

        self._spawn(run)
        return ending

    def _owner_of_end(self, producer_id: int, epoch: int, number: int) -> TransactionalProducer:
        each = self._by_id.get(producer_id)
        if each is None:
            raise TransactionAborted(f"transaction {number} of producer {producer_id} is not known: it was aborted")
        if epoch == each.epoch:
            each.check_ended(number)
        each.check_owner(epoch)
        return each

    async def _commit(self, each: TransactionalProducer, branches: Collection[int], before: State) -> None:
        """Decide, mark and finish. Raises GroupFenced: it is aborted; StorageError: it is in the state of before."""
        try:
            for mark, end in list(missing_marks(each, branches)):
                await mark.wait(end)
            for pending in each.work.offsets.values():
                pending.member.check_owner(pending.committed.partition, pending.epoch)
            decision = each.decided(branches)
            self._write(decision)
        except (StorageError, trio.Cancelled):
            each.state = before
            if before is State.OPEN:
                self._alarm.set(each.began_s + each.timeout_s)
            raise
        except LinnError as error:
            each.state = before
            self._abort(each, AbortReason.GROUP, error.text)
            raise
        await self._finish(each, self._decided(each, decision), decision)

    def _decided(self, each: TransactionalProducer, decision: Committed) -> Work:
        self._open.pop(each, None)
        self._hold_positions(each, decision)
        return each.end(decision)

    async def _finish(self, each: TransactionalProducer, work: Work, decision: Committed) -> None:
        """Wait until a decision is durable, apply it and mark it. Raises SyncFailed."""
        await self._until_committed()
        self.committed += 1
        if decision.offsets:
            await self._apply_offsets(each, decision)
        await self._mark_until_done(each, work)

    def _hold_positions(self, each: TransactionalProducer, decision: Committed) -> None:
        """Have new members of the groups that a decision moves begin to read when it is carried out."""
        groups = {group: None for group, _ in decision.offsets}
        each.tickets = {group: self._groups.hold_positions(group) for group in groups}

    async def _apply_offsets(self, each: TransactionalProducer, decision: Committed) -> None:
        """Put the offsets of a commit into the groups' log, durably. Raises SyncFailed."""
        by_group: dict[str, list[OffsetCommitted]] = {}
        for group, offset in decision.offsets:
            by_group.setdefault(group, []).append(offset)
        while by_group and not self._closed:
            group, offsets = next(iter(by_group.items()))
            try:
                await self._groups.commit_decided(group, offsets)
                del by_group[group]
                self._groups.release_positions(group, each.tickets.pop(group))
            except SyncFailed:
                raise
            except StorageError as error:
                logger.warning("the offsets of a transaction wait for the disk: %(error)s", log_fields(error))
                await self._clock.sleep(ROOM_RETRY_S)
        each.has_offsets_to_apply = False
        while not self._closed:
            # Not later than the next decision: they must not be applied again when others have gone on from there.
            try:
                self._write(OffsetsApplied(each.name))
            except StorageError:
                await self._clock.sleep(ROOM_RETRY_S)
            else:
                return

    def _abort(self, each: TransactionalProducer, reason: AbortReason, why: str = "") -> Ending | None:
        """Abort the present transaction. `why`: what its owner is told, unless it asked for it. Returns as `_mark`."""
        self._open.pop(each, None)
        self.aborted[reason] += 1
        return self._mark(each, each.end(None, why))

    def _mark(self, each: TransactionalProducer, work: Work) -> Ending | None:
        """Mark the end of the present transaction. Return what is to be waited for where that takes turns with others.

        What a full disk refuses is left to a task, for which nobody waits.
        """
        try:
            if not any(True for _ in marking(each, work, self._topics)):
                each.ended()
                return None
        except StorageError as error:
            logger.warning("an ended transaction is not marked yet: %(error)s", log_fields(error))
            self._spawn(lambda: self._mark_until_done(each, work))
            return None
        return self._ending(each, lambda: self._mark_until_done(each, work))

    async def _mark_until_done(self, each: TransactionalProducer, work: Work) -> None:
        while not self._closed:
            try:
                for _ in marking(each, work, self._topics):
                    await trio.lowlevel.checkpoint()
            except LogClosed:
                return
            except StorageError as error:
                logger.warning("an ended transaction is not marked yet: %(error)s", log_fields(error))
                await self._clock.sleep(ROOM_RETRY_S)
                continue
            each.ended()
            return

    def _abort_overdue(self) -> float | None:
        now_s = self._clock.monotonic()
        for each in [each for each in self._open if each.began_s + each.timeout_s <= now_s]:
            if each.state is State.OPEN:
                text = 'transaction %(number)d of "%(name)s" was open for %(timeout)g s and is aborted'
                logger.warning(text, {"number": each.number, "name": each.name, "timeout": each.timeout_s})
                why = f"it was open for longer than its timeout of {each.timeout_s:g} s"
                self._abort(each, AbortReason.TIMEOUT, why)
        deadlines = [each.began_s + each.timeout_s for each in self._open if each.state is State.OPEN]
        return min(deadlines, default=None)

    # --- operators ---------------------------------------------------------------------------------------------------

    def open_now(self) -> list[TransactionalProducer]:
        """The names with an open transaction, the one opened first in front."""
        return list(self._open)

    def opened_s(self, branch: int) -> float | None:
        """The monotonic time at which a producer's present transaction was opened; None if it is not known."""
        each = self._by_branch.get(branch)
        return None if each is None or each.state is State.IDLE else each.began_s

    def named(self, name: str) -> TransactionalProducer:
        """The transactions of a name. Raises TransactionUnknown."""
        each = self.names.get(name)
        if each is None:
            raise TransactionUnknown(f'no transactions have the name "{name[:80]}"{did_you_mean(name, self.names)}')
        return each

    def opened(self, name: str) -> TransactionalProducer:
        """The transactions of a name that has an open one. Raises TransactionUnknown, TransactionBusy."""
        each = self.named(name)
        if each.state is State.IDLE:
            raise TransactionUnknown(f'"{name}" has no open transaction: it is idle')
        if each.is_ending:
            raise TransactionBusy(f'the end of the transaction of "{name}" is under way: it can\'t be aborted now')
        return each

    def name_of(self, holder: str) -> str:
        """The name of the transactions one of which is this holder of records; "" if it is not known any more."""
        each = self._by_id.get(owner_of(holder)[0])
        return "" if each is None else each.name

    def abort_by_operator(self, name: str) -> None:
        """Abort a name's open transaction. Raises TransactionUnknown, TransactionBusy."""
        self._abort(self.opened(name), AbortReason.OPERATOR, "an operator aborted it")

    # --- the log -----------------------------------------------------------------------------------------------------

    def _write(self, event: TransactionEvent) -> None:
        if self.state is not None:
            self.state.append(encode_transaction_events([event]))
            if self.state.is_due():
                state = self.state
                self._spawn(lambda: state.compact(self._snapshot))

    def _is_committed(self) -> bool:
        """Whether everything in the log is committed."""
        log = self.state.partition if self.state is not None else None
        return log is None or log.committed.offset >= log.log.bounds()[1]

    async def _until_committed(self) -> None:
        if self.state is not None:
            await self.state.partition.committed.wait(self.state.partition.log.bounds()[1])

    def _snapshot(self) -> list[bytes]:
        events = [event for each in self.names.values() for event in each.snapshot()]
        return [encode_transaction_events(events, restart=True)]

    async def enforce_retention(self) -> None:
        """Let the log do its housekeeping."""
        if self.state is not None:
            await self.state.partition.enforce_retention(self._clock.now_ms())

    async def close(self) -> None:
        """Sync and close the log. What is open is aborted by the next start."""
        self._closed = True
        self._alarm.cancel()
        if self.state is not None:
            await self.state.partition.close()


def _is_present(each: TransactionalProducer | None, number: int) -> bool:
    """Whether a transaction is that of a client which has opened its name since the start."""
    return each is not None and not each.is_closed and each.number == number
