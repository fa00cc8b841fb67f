"""A shared subscription on one partition at run time: the state machine, its clock, and its offers to consumers.

The state machine (`subscription`) decides; this class performs: it reads leased records, wakes consumers, and lets
leases expire. Its parts write the events (`subscription_log`), trim settled records (`trimming`), let records expire
(`expiry`), and have dead records moved.

Laws: a dead letter is committed at its target before it is settled here. After `abandon` nothing here touches a log.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from zlib import crc32

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.delivery.consumer import do_nothing
from linn.core.delivery.delivery import Delivery
from linn.core.delivery.settlement import Settlement
from linn.core.delivery.vocabulary import Verdict
from linn.core.env.alarm import Alarm
from linn.core.env.env import Clock, Spawn
from linn.core.env.steady_clock import SteadyClock
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    BatchMalformed,
    BrokerStopping,
    DeliveryNotCurrent,
    DescriptorsExhausted,
    DiskFull,
    LinnError,
    SubscriptionWrongKind,
    SyncFailed,
)
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.picked_reading import read_picked
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.queue.damage import Damage
from linn.core.queue.dead_letter import DeadReason
from linn.core.queue.dispatch_order import TopicOrder
from linn.core.queue.effects import Effects
from linn.core.queue.event import SubscriptionEvent
from linn.core.queue.event_run import Holder
from linn.core.queue.expiry import Expiry
from linn.core.queue.lease import Lease
from linn.core.queue.offset_ranges import Range
from linn.core.queue.ordered_queue import OrderedQueue
from linn.core.queue.record_states import DecidedRange
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.subscription import SharedSubscription
from linn.core.queue.subscription_log import SubscriptionLog, about
from linn.core.queue.trimming import Handovers, Trimming

logger = logging.getLogger("linn.queue")

RETRY_S_MIN = 0.5
RETRY_S_MAX = 10.0
"""Pauses before dead letters are sent again whose target is full or missing: each is twice as long as the one before,
so that a target that stays full for hours is asked rarely, and one that has room soon gets them soon.
"""
LEASES_IN_A_TURN = 64
"""Leases of a disconnected consumer that are returned without a pause, in about a millisecond."""

MoveDeadLetters = Callable[["PartitionQueue"], Awaitable[None]]


class PartitionQueue:
    """One partition's part of a queue, or of a named subscription."""

    moved_what = "dead letters"
    """The records that leave by transfer, for log lines."""

    def __init__(
        self,
        partition: Partition,
        semantics: DeliverySemantics,
        state: StateLog | None,
        on_ready: Callable[[], None],
        clock: Clock,
        spawn: Spawn,
        move_dead_letters: MoveDeadLetters,
        name: str = "",
    ) -> None:
        """`state` is None if nothing survives a restart; `on_ready` is called when `acquire` may find more; `name` is
        that of a stream's subscription.
        """
        self.name = name
        self.partition = partition
        self.clock: Clock = SteadyClock(clock)
        self.spawn = spawn
        # The event log may go back to records that were trimmed since.
        self.subscription = SharedSubscription(semantics, partition.log.bounds()[0] if state is None else 0)
        self.subscription.salt = crc32(str(partition.id).encode())
        self.log = SubscriptionLog(partition, self.subscription, state, clock, spawn)
        self.log.on_room = on_ready
        self.handovers = Handovers(self.log)
        self.trimming = Trimming(partition, self.subscription, self.log, self.handovers, spawn)
        self.dead_letters = DeadLetterTask(self, move_dead_letters)
        self.damage = Damage(partition)
        self.on_undecided: Callable[[DecidedRange], None] = do_nothing
        """Called when records that were decided to a consumer are gone from the log."""
        self.on_change: Callable[[], None] | None = None
        """Called when records were settled or returned; None: no takeover waits for that."""
        self.redelivered_records = 0
        """Records delivered for the second time or later."""
        self.missed_records = 0
        """Records dropped by retention or overflow before they were settled."""
        self.expired_records = 0
        """Records whose time to live was over before a consumer took them."""
        self.expiry: Expiry | None = None
        """None: neither the topic nor any record has a TTL."""
        self.is_closed = False
        """Whether its topic or its subscription is gone, or is no queue any more."""
        self.unreadable = range(0)
        """The undecodable batch that was found last: it is examined once."""
        self._on_ready = on_ready
        self._alarm = Alarm(self.clock, spawn, self._expire)
        self.ordered: OrderedQueue | None = None
        """The index of the topic's order; None: it has no order."""
        self._void: list[Range] = []
        """Offsets that readers never get, to be settled once the stable offset has passed them."""
        self._rests = self._has_rested = False

    def set_order(self, order: TopicOrder | None) -> None:
        """Deliver in an order from now on; None: by offset. Leases go on."""
        if order == (self.ordered.order if self.ordered is not None else None):
            return
        self.subscription.ordering = None
        if self.ordered is not None:
            self.ordered.close()
        self.ordered = None if order is None else OrderedQueue(self, order)
        if self.log.is_open:
            self._begin_order()

    def _begin_order(self) -> None:
        if self.ordered is not None:
            self.ordered.begin()
        else:
            self._on_ready()

    # --- starting and stopping ---

    async def recover(self, left_off: Sequence[SubscriptionEvent] = (), begin: int = 0) -> None:
        """Rebuild the state from its log, or from the state left in memory; on a full disk delivery begins once there
        is room. `begin`: the first offset that a subscription without any state delivers.

        Raises LogCorrupt, StorageError.
        """
        start, end = self.partition.log.bounds()
        await self.log.replay(end)
        if begin and self.log.is_empty():
            self.subscription.skip_to(min(begin, end))
        for event in left_off:
            self.subscription.apply(event)
        self.subscription.skip_to(start)
        effects = self.subscription.recovered(self.clock.monotonic())
        try:
            await self._begin(effects)
        except DiskFull as error:
            text = "%(partition)s: nothing is delivered until the disk has room: %(error)s"
            logger.error(text, about(self.partition, error))
            self.trimming.begin_if_due()
            self.spawn(lambda: self._begin_later(effects))

    async def _begin(self, effects: Effects) -> None:
        """Start delivering. Raises StorageError: nothing is delivered."""
        await self.log.begin()
        self.partition.watchers.add(self._on_advance)
        self.partition.on_void.append(self.settle_void)
        self._begin_expiry()
        self._begin_order()
        self.follow(effects)
        # Offsets may have become void while this subscription was closed.
        hidden = self.partition.transactions.hidden.exact(self.subscription.settled_before())
        self.settle_void([left for span in hidden for left in self.subscription.unsettled(*span)])
        self.trimming.begin_if_due()
        self.dead_letters.begin_if_due()

    async def _begin_later(self, effects: Effects) -> None:
        with contextlib.suppress(NotLeader):
            while not self.log.is_open and not self.is_closed:
                await self.clock.sleep(ROOM_RETRY_S)
                with contextlib.suppress(DiskFull, DescriptorsExhausted):
                    await self._begin(effects)

    async def close(self) -> None:
        """Stop delivering; write a snapshot, so that the next start is quick."""
        if self._stop():
            await self.log.close(self.handovers.owed)

    def abandon(self, reason: NotLeader) -> None:
        """Stop delivering because another broker leads the partition, or none: nothing is written or trimmed here any
        more, and what waits for events that are not committed ends. Can be repeated.

        Leases end with it: the next leader has the records ready, with the attempts that are committed.
        """
        self._stop()
        self.log.abandon(reason)
        self.trimming.trims = False

    def _stop(self) -> bool:
        """Hear of nothing more; returns whether it had begun."""
        self.is_closed = True
        self._alarm.cancel()
        if self.ordered is not None:
            self.ordered.close()
        if not self.log.is_open:
            return False
        self.partition.watchers.remove(self._on_advance)
        self.partition.on_void.remove(self.settle_void)
        self.partition.on_timed = None
        if self.expiry is not None:
            self.expiry.close()
        return True

    # --- time to live ---

    def set_keeping(self, *, trims: bool, ttl_ms: int | None, endings: bool = False) -> None:
        """Set whether settled records are trimmed, the TTL of the topic's own queue, None: it has none, and whether
        that queue keeps how records ended.
        """
        self.trimming.trims = trims
        if not trims:
            self.partition.thinning.before = 0  # Followers keep what is settled from now on.
        self.subscription.keeps_endings = endings and not self.name
        if not self.subscription.keeps_endings:
            self.subscription.forget_endings(self.partition.log.bounds()[1])
        if not self.name and (ttl_ms is not None or self.expiry is not None):
            self._expires().set_ttl(ttl_ms)

    def _expires(self) -> Expiry:
        if self.expiry is None:
            self.expiry = Expiry(self)
        return self.expiry

    def _stored_timed(self, batch: RecordBatch) -> None:
        self._expires().stored(batch)

    def _begin_expiry(self) -> None:
        if self.name:
            return  # Retention says what a stream keeps.
        self.partition.on_timed = self._stored_timed
        timed_end = self.partition.log.facts.timed_end
        if timed_end > self.subscription.settled_before():
            self.spawn(partial(self._expires().rebuild, timed_end))
        if self.expiry is not None:
            self.expiry.begin()

    # --- delivering ---

    def is_ready(self) -> bool:
        """Whether `acquire` would find something."""
        return self.log.is_open and not self._rests and (bool(self.handovers.owed) or self._has_ready())

    def _has_ready(self) -> bool:
        if self.ordered is not None:
            return self.ordered.is_ready()
        return self.subscription.ready_count(self.partition.stable_offset) > 0

    def has_more(self) -> None:
        """Offer records to consumers: there may be more of them."""
        self._on_ready()

    def acquire(
        self, consumer: int, records_max: int, start: int | None = None, *, skips_lost: bool = False
    ) -> Lease | None:
        """Lease ready records to a consumer, or hand them over if delivery settles them.

        `start`: only from this offset on; not if delivery settles them. `skips_lost`: none that came back by a loss.

        Raises StorageError: the event of a handover can't be written. Once it can, the next consumer that asks gets the
        records. NotLeader: the records are another broker's to deliver.
        """
        if not self.log.is_open or self._rests or (self.ordered is not None and not self.ordered.is_built):
            return None
        if not self.handovers.owed:
            now, end = self.clock.monotonic(), self.partition.stable_offset
            ready_at = self.subscription.next_ready_at()
            if ready_at is not None and ready_at <= now:
                self.follow(self.subscription.expire(now))
            if start is None:
                lease = self.subscription.acquire(consumer, records_max, end, now, skips_lost=skips_lost)
            else:
                lease = self.subscription.acquire_from(start, consumer, records_max, end, now)
            if lease is None:
                if self.ordered is not None:
                    self.ordered.search_on()
                return None
            if not self.subscription.semantics.settles_on_delivery:
                # A lease lost in a crash is granted again: its event may be written late, and nothing waits for it.
                if not self.log.flush_or_keep():
                    self.log.check_led()  # The next leader may have delivered and settled the records already.
                if lease.deadline < math.inf:
                    self._alarm.set(lease.deadline)
                return lease
            self.handovers.owed.append(lease)
        return self.handovers.take(consumer)

    async def read(self, ranges: Sequence[Range], bytes_max: int, accepts: Sequence[int]) -> Sequence[RecordBatch]:
        """The records of a lease, or as many as fit, in one of the formats that `accepts` names.

        Raises LogCorrupt, OffsetOutOfRange, BatchMalformed, FormatUnknown.
        """
        first, end = ranges[0]
        if self.damage.ranges:
            await self.damage.check(first)
        if first in self.unreadable:
            raise BatchMalformed(f"the records before offset {self.unreadable.stop} can't be decoded")
        if not self.log.ids_noted or self.subscription.semantics.settles_on_delivery:
            await self.log.until_deliverable()
        if len(ranges) == 1:
            batches = await self.partition.read_range(first, end, bytes_max, accepts)
        else:
            batches = await read_picked(self.partition, ranges, bytes_max, accepts)
        self._has_rested = False
        if self.damage.ranges and batches:
            self.damage.forget(batches[0].base_offset, batches[-1].end_offset)
        return batches

    def count_delivered(self, delivery: Delivery) -> None:
        """Count records delivered to a consumer."""
        self.partition.count_delivered(delivery.batches)
        if delivery.attempt > 1:
            self.redelivered_records += delivery.count

    def handed_over(self, consumer: int) -> None:
        """Record that the consumer has read everything of its last `acquire`."""
        if self.handovers.reading.pop(consumer, None) is not None:
            self.trimming.begin_if_due()
            self.trimming.on_room()

    def settle(self, consumer: int, settlement: Settlement, name: str = "") -> Effects:
        """Carry out one settlement, of a consumer of that name. Call `log.flush` after one or many.

        Raises DeliveryNotCurrent, LimitExceeded, SubscriptionWrongKind: nothing was changed.
        """
        now = self.clock.monotonic()
        ranges = None if settlement.is_whole else [(settlement.first, settlement.end)]
        subscription, delivery_id = self.subscription, settlement.delivery_id
        if settlement.verdict == Verdict.ACK:
            effects = subscription.ack(consumer, delivery_id, ranges, now)
        elif settlement.verdict == Verdict.NACK:
            effects = subscription.nack(consumer, delivery_id, ranges, now, settlement.ms or None, settlement.reason)
        elif settlement.verdict == Verdict.REJECT:
            effects = subscription.reject(consumer, delivery_id, ranges, now, settlement.reason)
        elif settlement.verdict == Verdict.EXTEND:
            deadline = subscription.extend(consumer, delivery_id, ranges, settlement.ms, now)
            if deadline < math.inf:
                self._alarm.set(deadline)
            effects = Effects()
        elif settlement.verdict == Verdict.RELEASE:
            effects = subscription.put_back(consumer, delivery_id, ranges, now, 0)
        elif settlement.verdict == Verdict.READY:
            effects = subscription.ready(consumer, delivery_id, ranges, Holder(name, self.clock.now_ms()), now)
        elif settlement.verdict == Verdict.DONE:
            effects = subscription.done(name, delivery_id, settlement.first, settlement.end)
        else:
            raise SubscriptionWrongKind(f"verdict {settlement.verdict} is unknown")
        self.follow(effects)
        return effects

    def resolve(self, consumer: int, name: str, delivery_id: int, first: int, end: int) -> bool:
        """Answer whether records were decided to a consumer; if not, they never can be. Call `log.flush` after it."""
        effects = self.subscription.resolve(consumer, name, delivery_id, first, end, self.clock.monotonic())
        if effects is not None:
            self.follow(effects)
        return effects is None

    def return_unsent(self, consumer: int, delivery_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Return the part of a lease that could not be read or sent. Without delay; the attempt counts."""
        if not ranges or not self.log.is_open:
            return
        with contextlib.suppress(DeliveryNotCurrent):  # It expired or was settled on delivery meanwhile.
            self.follow(self.subscription.nack(consumer, delivery_id, ranges, self.clock.monotonic(), 0))
            self.log.flush_or_keep()

    def put_back(self, consumer: int, lease: Lease, ranges: Sequence[Range], delay_s: float) -> None:
        """Return the part of a lease that can't be read now; it is retried later. The attempt does not count."""
        if not ranges or not self.log.is_open:
            return
        now = self.clock.monotonic()
        with contextlib.suppress(DeliveryNotCurrent):  # It expired meanwhile.
            self.follow(self.subscription.put_back(consumer, lease.delivery_id, ranges, now, round(1000 * delay_s)))
        # Its event is written with the next: a crash returns the records as well, and nothing waits for it.

    def rest(self, error: LinnError) -> None:
        """Pause delivery for a moment: nothing can be read or written now."""
        if self._rests:
            return
        if not self._has_rested:
            text = "%(partition)s: nothing is delivered for now, will try again: %(error)s"
            logger.warning(text, about(self.partition, error))
        self._rests = self._has_rested = True

        async def wake() -> None:
            await self.clock.sleep(ROOM_RETRY_S)
            self._rests = False
            self._on_ready()

        self.spawn(wake)

    def reject_unreadable(self, consumer: int, lease: Lease) -> None:
        """Make the part of a lease in `unreadable` dead: it would be redelivered for ever."""
        gone = self.unreadable
        held = [(max(first, gone.start), min(end, gone.stop)) for first, end in lease.ranges()]
        held = [(first, end) for first, end in held if first < end]
        if not held:
            return
        with contextlib.suppress(DeliveryNotCurrent):
            self.follow(self.subscription.reject(consumer, lease.delivery_id, held, self.clock.monotonic()))
            self.log.flush_or_keep()

    async def consumer_gone(self, consumer: int, *, is_lost: bool = False) -> None:
        """Return all leases of a consumer, in turns if there are many; `recover` returns leases that a close leaves."""
        leases, now = self.subscription.leases_of(consumer), self.clock.monotonic
        for at in range(0, len(leases) - LEASES_IN_A_TURN, LEASES_IN_A_TURN):
            if self.log.is_open:
                some = leases[at : at + LEASES_IN_A_TURN]
                self.follow(self.subscription.return_leases(some, now(), is_lost=is_lost))
                self.log.flush_or_keep()
                await trio.lowlevel.checkpoint()
        if self.log.is_open:
            self.handed_over(consumer)
            self.follow(self.subscription.consumer_gone(consumer, now(), is_lost=is_lost))
            self.log.flush_or_keep()

    def dead_lettered(self, first: int, end: int) -> None:
        """Settle dead records: they were copied, or no copy is wanted."""
        self.follow(self.subscription.dead_lettered(first, end))
        self.log.flush_or_keep()

    def has_to_move(self) -> bool:
        """Whether records are to leave by transfer."""
        return bool(self.subscription.dead_count)

    def moved(self) -> None:
        """Called when no more records have to leave."""

    def purge(self) -> int:
        """Settle all records that wait for delivery; returns their number.

        Raises StorageError: they are settled, but not durably.
        """
        effects = self.subscription.purge(self.partition.stable_offset)
        self.follow(effects)
        self.log.flush()
        return effects.settled

    def skip_to_start(self) -> None:
        """Advance to the log's start after retention or a trim."""
        if not self.log.is_open or self.partition.start_offset <= self.subscription.settled_before():
            return
        gone = self.subscription.decided_before(self.partition.start_offset)
        missed = self.subscription.skip_to(self.partition.start_offset)
        for decided in gone:
            self.on_undecided(decided)
        self._count_missed(missed)
        self.log.flush_or_keep()
        if self.on_change is not None:
            self.on_change()

    def _count_missed(self, missed: int) -> None:
        if missed:
            self.missed_records += missed
            text = "%(partition)s: retention or overflow dropped %(count)d records that were not settled"
            logger.warning(text, about(self.partition) | {"count": missed})

    def end_waiting(self, records: int, *, is_dead: bool) -> int:
        """End the lowest records that wait for delivery, at most so many, to make room: they become dead letters, or
        are settled. Returns their number.
        """
        if not self.log.is_open:
            return 0
        subscription = self.subscription
        end = subscription.end_of_waiting(records, self.partition.stable_offset)
        effects = subscription.dead_letter(0, end, DeadReason.OVERFLOW) if is_dead else subscription.purge(end)
        self.missed_records += effects.settled
        self.follow(effects)
        self.log.flush_or_keep()
        return effects.settled + effects.dead

    # --- chores ---

    def _on_advance(self) -> None:
        if self._void:
            self.settle_void()
        if self.expiry is not None:
            self.expiry.advanced()
        if self.ordered is not None:
            self.ordered.go_on()
        else:
            self._on_ready()

    def settle_void(self, more: Sequence[Range] = ()) -> None:
        """Settle offsets that readers never get, as far as they are below the stable offset."""
        self._void += more
        stable = self.partition.stable_offset
        passed = [span for span in self._void if span[1] <= stable]
        self._void = [span for span in self._void if span[1] > stable]
        for first, end in passed:
            self.follow(self.subscription.settle_void(first, end))
        if passed:
            self.log.flush_or_keep()

    # --- transactions ---

    def end_held(self, holder: str, *, is_commit: bool) -> tuple[Mark, int] | None:
        """Settle what a transaction holds, or return it. Can be repeated; returns as `SubscriptionLog.flush`.

        Raises StorageError: it is done, and its event is written with the next ones.
        """
        end, give_up = self.subscription.done, self.subscription.give_up_decided
        for first, stop, decision in self.subscription.decided_to(holder):
            held = holder, decision.delivery_id, first, stop
            self.follow(end(*held) if is_commit else give_up(*held, self.clock.monotonic()))
        return self.log.flush()

    def follow(self, effects: Effects) -> None:
        """Do what a change of the subscription asks for. Call `log.flush` after it."""
        if effects.ready:
            self._on_ready()
        if self.ordered is not None:
            self.ordered.go_on()
            if effects.settled and self.ordered.is_ready():
                self._on_ready()  # A key or a share may be free.
        if effects.dead:
            self.dead_letters.count += effects.dead
            self.dead_letters.begin_if_due()
        if effects.settled:
            self.trimming.begin_if_due()
            self.trimming.on_room()
        if self.expiry is not None and (effects.ready or effects.delayed):
            self.expiry.came_back()
        if effects.delayed and (deadline := self.subscription.next_deadline()) is not None:
            self._alarm.set(deadline)
        if self.on_change is not None:
            self.on_change()

    def _expire(self) -> float | None:
        self.follow(self.subscription.expire(self.clock.monotonic()))
        self.log.flush_or_keep()
        return self.subscription.next_deadline()


class DeadLetterTask:
    """Has the dead records of one partition moved to their target."""

    def __init__(self, queue: PartitionQueue, move: MoveDeadLetters) -> None:
        self.count = 0
        """Records that got no more attempts."""
        self.dropped: Counter[str] = Counter()
        """Records that are lost to their target, by reason."""
        self.retries = 0
        """Tries in vain since one succeeded."""
        self._queue = queue
        self._move = move
        self._is_running = False

    def begin_if_due(self) -> None:
        """Move in the background if there are dead records."""
        if not self._is_running and self._queue.log.is_open and self._queue.has_to_move():
            self._is_running = True
            self._queue.spawn(self._run)

    async def _run(self) -> None:
        queue, said, pause_s = self._queue, "", RETRY_S_MIN
        try:
            while queue.log.is_open and queue.has_to_move():
                try:
                    await self._move(queue)
                    pause_s, self.retries = RETRY_S_MIN, 0
                except SyncFailed:
                    raise
                except LinnError as error:
                    if queue.is_closed or queue.log.is_lost:
                        return
                    if error.code != said:  # Once: a full topic may stay full for long.
                        level = logging.DEBUG if isinstance(error, BrokerStopping) else logging.ERROR
                        text = f"%(partition)s: {queue.moved_what} wait, will try again: %(error)s"
                        logger.log(level, text, about(queue.partition, error))
                    said = error.code
                    self.retries += 1
                    await queue.clock.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S_MAX)
        finally:
            self._is_running = False
        queue.moved()
