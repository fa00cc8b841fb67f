"""A shared subscription on one partition at run time: the state machine, its event log, clock and tasks.

The state machine (`subscription`) decides; this class performs: it writes events, reads leased records, wakes
consumers, lets leases expire, copies dead letters and trims settled records.

Laws: a settlement is answered after its event is as durable as the topic's storage makes records; events go to the log
before the delivery that they describe; a dead letter is committed at its target before it is settled here.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.delivery.consumer import nobody
from linn.core.delivery.delivery import Delivery
from linn.core.delivery.settlement import Settlement
from linn.core.delivery.vocabulary import Verdict
from linn.core.env.alarm import Alarm
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    BatchMalformed,
    DeliveryNotCurrent,
    DescriptorsExhausted,
    DiskFull,
    LinnError,
    StorageError,
    SubscriptionWrongKind,
    SyncFailed,
)
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.queue.damage import Damage, warn_of_lost
from linn.core.queue.effects import Effects
from linn.core.queue.event import SubscriptionEvent, clip_event, decode_events, encode_events
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import Lease
from linn.core.queue.offset_ranges import Range
from linn.core.queue.record_states import DecidedRange
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.subscription import SharedSubscription

logger = logging.getLogger("linn.queue")

TRIM_AFTER_RECORDS = 10_000
"""Settled records are trimmed in steps of this many, or when the queue is empty."""
DEAD_LETTER_RETRY_S = 1.0
"""Pause before dead letters are retried after their target's disk was full or the target was missing."""
LEASES_IN_A_TURN = 64
"""Leases of a disconnected consumer that are returned without a pause, in about a millisecond."""

CopyDeadLetters = Callable[["PartitionQueue"], Awaitable[None]]


class PartitionQueue:
    """One partition's part of a queue, or of a named subscription."""

    def __init__(
        self,
        partition: Partition,
        semantics: DeliverySemantics,
        state: StateLog | None,
        on_ready: Callable[[], None],
        clock: Clock,
        spawn: Spawn,
        copy_dead_letters: CopyDeadLetters,
        name: str = "",
    ) -> None:
        """`state` is None if nothing survives a restart; `on_ready` is called when `acquire` may find more; `name` is
        that of a stream's subscription.
        """
        self.name = name
        self.partition = partition
        self.semantics = semantics
        self.state = state
        self.subscription: SharedSubscription
        self.trims = True
        """Whether settled records are trimmed: those of a plain queue are, those on a stream are not."""
        self.on_room: Callable[[], None] = nobody
        """Called when records were settled or trimmed, which makes room."""
        self.on_undecided: Callable[[DecidedRange], None] = nobody
        """Called when records that were decided to a consumer are gone from the log."""
        self.redelivered_records = 0
        """Records delivered for the second time or later."""
        self.dead_letters = 0
        """Records that got no more attempts."""
        self.missed_records = 0
        """Records dropped by retention or overflow before they were settled."""
        self.spawn = spawn
        self._on_ready = on_ready
        self.clock = clock
        self._copy_dead_letters = copy_dead_letters
        self._copying = False
        self._trimming = False
        self._alarm = Alarm(clock, spawn, self._expire)
        self._open = False
        self.is_closed = False
        """Whether its topic or its subscription is gone, or is no queue any more."""
        self._ids_noted = state is None
        """Whether the state log durably has the next delivery id: no id may be given out before."""
        self.clipped = False
        """Whether the event log marks records as settled that were lost in a power failure."""
        self.unreadable = range(0)
        """The undecodable batch that was found last: it is looked at once."""
        self.damage = Damage(partition)
        self._void: list[Range] = []
        """Offsets that readers never get, to be settled once the stable offset has passed them."""
        self._rests = self._has_rested = False
        self._owed: deque[Lease] = deque()
        """Leases settled for a handover that has not happened: the state log had no room for the event."""
        self._writing_owed = False
        self._low_noted = (0, 0)
        """An offset before which all was settled, and the end of the state log that says so."""
        self._low_durable = 0
        self._handing_over: dict[int, int] = {}
        """The first offset, by consumer, that is settled on delivery but not read yet: it must not be trimmed."""

    # --- starting and stopping ---

    async def recover(self, left_off: Sequence[SubscriptionEvent] = (), begin: int = 0) -> None:
        """Rebuild the state from its log, or from the state left in memory; on a full disk delivery begins once there
        is room. `begin`: the first offset that a subscription without any state delivers.

        Raises LogCorrupt, StorageError.
        """
        partition = self.partition
        start, end = partition.log.bounds()
        # The event log may go back to records that were trimmed since.
        self.subscription = self.semantics.shared_subscription(start if self.state is None else 0)
        self.clipped = await self._replay(end)
        if begin and (self.state is None or not self.state.partition.log.bounds()[1]):
            self.subscription.skip_to(min(begin, end))
        for event in left_off:
            self.subscription.apply(event)
        self.subscription.skip_to(start)
        effects = self.subscription.recovered(self.clock.monotonic())
        try:
            await self._begin(effects)
        except DiskFull as error:
            text = "%(partition)s: nothing is delivered until the disk has room: %(error)s"
            logger.error(text, self._about(error))
            self._trim_if_due()
            self.spawn(lambda: self._begin_later(effects))

    async def _begin(self, effects: Effects) -> None:
        """Start delivering. Raises StorageError: nothing is delivered."""
        if self.clipped and self.state is not None:
            # Offsets beyond the end will be given again: the old log's events about them must go first.
            await self.state.compact(self._snapshot, force=True)
            warn_of_lost(self.partition)
            self.clipped = False
        if self.state is not None and self.state.partition.log.bounds()[1]:
            self.flush()
            await self._note_ids()
        self.partition.watchers.add(self._on_advance)
        self.partition.on_void.append(self._settle_void)
        self._open = True
        self._on_ready()
        self.follow(effects)
        # Nobody settled these here when they became such.
        hidden = self.partition.transactions.hidden.exact(self.subscription.settled_before())
        self._settle_void([left for span in hidden for left in self.subscription.unsettled(*span)])
        self._trim_if_due()
        if self.subscription.dead_count:
            self._start_copying()

    async def _note_ids(self) -> None:
        """Sync the next delivery id. A queue that has never delivered anything postpones this to the first delivery."""
        assert self.state is not None
        await self.state.partition.log.sync()
        self._ids_noted = True

    async def _note_first_ids(self) -> None:
        """Sync the next delivery id for a waiting consumer. Raises StorageError; a failed sync ends the broker too."""
        self.flush()
        try:
            await self._note_ids()
        except SyncFailed as error:
            failed = error

            async def fail() -> None:
                raise failed

            self.spawn(fail)
            raise

    async def _begin_later(self, effects: Effects) -> None:
        while not self._open and not self.is_closed:
            await self.clock.sleep(ROOM_RETRY_S)
            with contextlib.suppress(DiskFull, DescriptorsExhausted):
                await self._begin(effects)

    async def _replay(self, end: int) -> bool:
        """Apply the event log; returns whether it was ahead of a data log that lost records in a power failure."""
        clipped = False
        if self.state is not None:
            async for record in self.state.replay():
                for event in decode_events(record):
                    kept = clip_event(event, end)
                    clipped = clipped or kept != event
                    if kept is not None:
                        self.subscription.apply(kept)
        return clipped

    async def close(self) -> None:
        """Stop delivering; write a snapshot, so that the next start is quick."""
        self.is_closed = True
        if not self._open:
            return
        self._open = False
        self.partition.watchers.remove(self._on_advance)
        self.partition.on_void.remove(self._settle_void)
        self._alarm.cancel()
        if self.state is None or not (self._ids_noted or self.state.partition.log.bounds()[1]):
            return  # There is nothing to write down.
        for lease in self._owed:
            self.subscription.take_back(lease)
        try:
            await self.state.compact(self._snapshot, force=True)
            await self.state.partition.commit_all()  # A transaction may wait for it, also if the log is deleted next.
        except SyncFailed:
            raise
        except StorageError as error:
            logger.warning("%(partition)s: closed without a snapshot: %(error)s", self._about(error))

    def left_off(self) -> Sequence[SubscriptionEvent]:
        """The state for a successor, as far as no log has it, when this is closed."""
        if self.state is not None:
            return ()
        self.flush()
        return self.subscription.snapshot_events(self.clock.monotonic())

    # --- delivering ---

    def is_ready(self) -> bool:
        """Whether `acquire` would find something."""
        return (
            self._open
            and not self._rests
            and (bool(self._owed) or self.subscription.ready_count(self.partition.stable_offset) > 0)
        )

    def acquire(self, consumer: int, records_max: int, start: int | None = None) -> Lease | None:
        """Lease ready records to a consumer, or hand them over if delivery settles them.

        `start`: only from this offset on; not if delivery settles them.

        Raises StorageError: the event of a handover can't be written. The records go to whoever asks first once it can.
        """
        if not self._open or self._rests:
            return None
        if not self._owed:
            now, end = self.clock.monotonic(), self.partition.stable_offset
            if start is None:
                lease = self.subscription.acquire(consumer, records_max, end, now)
            else:
                lease = self.subscription.acquire_from(start, consumer, records_max, end, now)
            if lease is None:
                return None
            if not self.semantics.settles_on_delivery:
                # A lease lost in a crash is granted again: its event may be written late, and nothing waits for it.
                self._flush_or_keep()
                self._alarm.set(lease.deadline)
                return lease
            self._owed.append(lease)
        try:
            self.flush()
        except StorageError:
            if not self._writing_owed:
                self._writing_owed = True
                self.spawn(self._write_owed)
            raise
        lease = self._owed.popleft()
        self._handing_over[consumer] = lease.first
        return lease

    async def read(self, first: int, end: int, bytes_max: int, accepts: Sequence[int]) -> Sequence[RecordBatch]:
        """The records of a lease, or as many as fit, in one of the formats that `accepts` names.

        Raises LogCorrupt, OffsetOutOfRange, BatchMalformed, FormatUnknown.
        """
        if self.damage.ranges:
            await self.damage.check(first)
        if first in self.unreadable:
            raise BatchMalformed(f"the records before offset {self.unreadable.stop} can't be decoded")
        if not self._ids_noted:
            await self._note_first_ids()
        if self.semantics.settles_on_delivery and self.state is not None:
            await self.state.partition.committed.wait(self.state.partition.log.bounds()[1])
        batches = await self.partition.read_range(first, end, bytes_max, accepts)
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
        if self._handing_over.pop(consumer, None) is not None:
            self._trim_if_due()
            self.on_room()

    def settle(self, consumer: int, settlement: Settlement, name: str = "") -> Effects:
        """Carry out one settlement, of a consumer of that name. Call `flush` after one or many.

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
            self._alarm.set(subscription.extend(consumer, delivery_id, ranges, settlement.ms, now))
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
        """Answer whether records were decided to a consumer; if not, they can't be any more. Call `flush` after it."""
        effects = self.subscription.resolve(consumer, name, delivery_id, first, end, self.clock.monotonic())
        if effects is not None:
            self.follow(effects)
        return effects is None

    def settled_durably(self) -> int:
        """The offset before which every record is settled, also after a power failure; it may be a little behind."""
        settled_before = self.subscription.settled_before()
        if self.state is None:
            return settled_before
        state, (low, position) = self.state, self._low_noted
        if state.partition.committed.offset >= position:
            self._low_durable = low
            if not self.subscription.events_waiting and not state.waiting:
                self._low_noted = settled_before, state.partition.log.bounds()[1]
        return self._low_durable

    async def until_decided(self) -> None:
        """Wait until what was decided is so after a power failure as well. Raises StorageError."""
        if self.state is not None:
            await self.state.partition.committed.wait(self.flush())

    def return_unsent(self, consumer: int, delivery_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Return the part of a lease that could not be read or sent. Without delay; the attempt counts."""
        if not ranges or not self._open:
            return
        with contextlib.suppress(DeliveryNotCurrent):  # It expired or was settled on delivery meanwhile.
            self.follow(self.subscription.nack(consumer, delivery_id, ranges, self.clock.monotonic(), 0))
            self._flush_or_keep()

    def put_back(self, consumer: int, lease: Lease, ranges: Sequence[Range], delay_s: float) -> None:
        """Return the part of a lease that can't be read now; it is retried later. The attempt does not count."""
        if not ranges or not self._open:
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
            logger.warning(text, self._about(error))
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
            self._flush_or_keep()

    async def consumer_gone(self, consumer: int) -> None:
        """Return all leases of a consumer, in turns if there are many; `recover` returns those that a close leaves."""
        leases, now = self.subscription.leases_of(consumer), self.clock.monotonic
        for at in range(0, len(leases) - LEASES_IN_A_TURN, LEASES_IN_A_TURN):
            if self._open:
                self.follow(self.subscription.return_leases(leases[at : at + LEASES_IN_A_TURN], now()))
                self._flush_or_keep()
                await trio.lowlevel.checkpoint()
        if self._open:
            self.handed_over(consumer)
            self.follow(self.subscription.consumer_gone(consumer, self.clock.monotonic()))
            self._flush_or_keep()

    def flush(self) -> int:
        """Write pending events as one record of the state log; returns the log's end, the offset to wait for.

        Raises StorageError: they are kept and written with the next ones.
        """
        events = self.subscription.take_events()
        if self.state is None:
            return 0
        if events or self.state.waiting:
            self.state.write(encode_events(events) if events else b"", self._encoded_snapshot)
            if self._open and self.state.is_due():
                self.spawn(partial(self.state.compact, self._snapshot))
        return self.state.partition.log.bounds()[1]

    def _flush_or_keep(self) -> None:
        """Flush where no answer depends on it: a full disk is no reason to stop the queue."""
        try:
            self.flush()
        except StorageError as error:
            text = "%(partition)s: %(count)d records of its log wait for the disk: %(error)s"
            logger.warning(text, self._about(error) | {"count": self.state.waiting if self.state else 0})

    async def _write_owed(self) -> None:
        """Write the events of pending handovers once there is room: their consumers got an error, others may wait."""
        try:
            while self._open and self.state is not None and self.state.waiting:
                await self.clock.sleep(ROOM_RETRY_S)
                with contextlib.suppress(StorageError):
                    self.state.write(b"", self._encoded_snapshot)
        finally:
            self._writing_owed = False
        self._on_ready()

    def dead_lettered(self, first: int, end: int) -> None:
        """Settle dead records: they were copied, or no copy is wanted."""
        self.follow(self.subscription.dead_lettered(first, end))
        self._flush_or_keep()

    def purge(self) -> int:
        """Settle all records that wait for delivery; returns their number.

        Raises StorageError: they are settled, but not durably.
        """
        effects = self.subscription.purge(self.partition.stable_offset)
        self.follow(effects)
        self.flush()
        return effects.settled

    def skip_to_start(self) -> None:
        """Advance to the log's start after retention or a trim."""
        if not self._open or self.partition.start_offset <= self.subscription.settled_before():
            return
        gone = self.subscription.decided_before(self.partition.start_offset)
        missed = self.subscription.skip_to(self.partition.start_offset)
        for decided in gone:
            self.on_undecided(decided)
        self._count_missed(missed)
        self._flush_or_keep()

    def _count_missed(self, missed: int) -> None:
        if missed:
            self.missed_records += missed
            text = "%(partition)s: retention or overflow dropped %(count)d records that were not settled"
            logger.warning(text, self._about() | {"count": missed})

    def drop_waiting(self, before: int) -> None:
        """Settle the records before an offset that wait for delivery, to make room. Leased and decided ones stay."""
        effects = self.subscription.purge(min(before, self.partition.stable_offset))
        self._count_missed(effects.settled)
        self.follow(effects)
        self._flush_or_keep()

    def _about(self, error: LinnError | None = None) -> dict[str, object]:
        """The fields of a log line."""
        return {"partition": str(self.partition.id), "topic": self.partition.id.topic} | log_fields(error)

    # --- chores ---

    def _on_advance(self) -> None:
        if self._void:
            self._settle_void()
        self._on_ready()

    def _settle_void(self, more: Sequence[Range] = ()) -> None:
        """Settle offsets that readers never get, as far as they are below the stable offset."""
        self._void += more
        stable = self.partition.stable_offset
        passed = [span for span in self._void if span[1] <= stable]
        self._void = [span for span in self._void if span[1] > stable]
        for first, end in passed:
            self.follow(self.subscription.settle_void(first, end))
        if passed:
            self._flush_or_keep()

    # --- transactions ---

    def end_held(self, holder: str, *, is_commit: bool) -> tuple[Mark, int] | None:
        """Settle what a transaction holds, or return it. Can be repeated; returns as `flushed`.

        Raises StorageError: it is done, and its event is written with the next ones.
        """
        end, give_up = self.subscription.done, self.subscription.give_up_decided
        for first, stop, decision in self.subscription.decided_to(holder):
            held = holder, decision.delivery_id, first, stop
            self.follow(end(*held) if is_commit else give_up(*held, self.clock.monotonic()))
        return self.flushed()

    def flushed(self) -> tuple[Mark, int] | None:
        """Flush, and return what has to pass before it is durable; None: nothing is. Raises StorageError as `flush`."""
        position = self.flush()
        return None if self.state is None else (self.state.partition.committed, position)

    def follow(self, effects: Effects) -> None:
        """Do what a change of the subscription asks for. Call `flush` after it."""
        if effects.ready:
            self._on_ready()
        if effects.dead:
            self.dead_letters += effects.dead
            self._start_copying()
        if effects.settled:
            self._trim_if_due()
            self.on_room()
        if effects.delayed and (deadline := self.subscription.next_deadline()) is not None:
            self._alarm.set(deadline)

    def _snapshot(self) -> list[bytes]:
        # First, because the disk may have no room for the snapshot either.
        self.flush()
        return [self._encoded_snapshot()]

    def _encoded_snapshot(self) -> bytes:
        return encode_events(self.subscription.snapshot_events(self.clock.monotonic()))

    def _trim_if_due(self) -> None:
        if not self.trims or self._trimming:
            return
        settled_before = self.trimmable_before()
        settled = settled_before - self.partition.start_offset
        if settled >= TRIM_AFTER_RECORDS or (settled > 0 and settled_before == self.partition.stable_offset):
            self._trimming = True
            self.spawn(self._trim)

    def trimmable_before(self) -> int:
        """The offset before which nobody needs the records any more."""
        owed = [lease.first for lease in self._owed]
        return min([self.subscription.settled_before(), *self._handing_over.values(), *owed])

    async def _trim(self) -> None:
        try:
            await self.partition.log.trim(before=self.trimmable_before())
        finally:
            self._trimming = False
        self.on_room()

    def _expire(self) -> float | None:
        self.follow(self.subscription.expire(self.clock.monotonic()))
        self._flush_or_keep()
        return self.subscription.next_deadline()

    def _start_copying(self) -> None:
        if not self._copying and self._open:
            self._copying = True
            self.spawn(self._copy)

    async def _copy(self) -> None:
        said = ""
        try:
            while self._open and self.subscription.dead_count:
                try:
                    await self._copy_dead_letters(self)
                except SyncFailed:
                    raise
                except LinnError as error:
                    if error.code != said:  # Once: a full topic may stay full for long.
                        logger.error("%(partition)s: dead letters wait, will try again: %(error)s", self._about(error))
                    said = error.code
                    await self.clock.sleep(DEAD_LETTER_RETRY_S)
        finally:
            self._copying = False
