"""QueueConsumer: one of the consumers that compete for a queue, or for a named subscription of a stream.

Laws: it leases the next ready records of the partition that was asked longest ago, unless a consumer of a higher
priority waits for them, or another is the single active one. A lease is of one delivery: what a delivery does not take
of it goes back at once. Records that were decided to its name come first, before any lease.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, Protocol

import trio

from linn.core.batch.format import NATIVE_ONLY
from linn.core.batch.steps import Steps, no_steps
from linn.core.delivery.consumer import do_nothing
from linn.core.delivery.delivery import NOTHING, Delivery
from linn.core.delivery.settlement import SETTLE_STEP, Settlement, SettleOutcome
from linn.core.delivery.vocabulary import ConsumerKind, Phase, Verdict
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    BatchMalformed,
    DeliveryNotCurrent,
    FormatUnknown,
    LinnError,
    LogClosed,
    LogCorrupt,
    OffsetOutOfRange,
    StorageError,
    SubscriptionWrongKind,
    SyncFailed,
)
from linn.core.log.mark import Mark
from linn.core.log.state_log import ROOM_RETRY_S
from linn.core.loop.waiting import RankedSignal, WaitDeadline
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LEASE_RECORDS_MAX, Lease
from linn.core.queue.offset_ranges import Range
from linn.core.queue.offset_rows import lowest_of, uncovered
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.record_states import DecidedRange, take_out

NO_REPEATS: deque[tuple[int, DecidedRange]] = deque(maxlen=0)
"""The repeats of every consumer without a name, to which nothing was decided before: an empty deque takes 760 bytes."""
DAMAGED_RETRY_S = 300.0
"""Interval at which damaged records are retried: a damaged file may have been replaced by a whole one."""

logger = logging.getLogger("linn.queue")


class CompetedFor(Protocol):
    """A queue, as its consumers see it."""

    topic: str
    closed: bool
    ready: RankedSignal
    partition_queues: list[PartitionQueue]
    listed: OrderedDict[int, None]
    aside: dict[int, None]
    decisions: int

    @property
    def is_two_phase(self) -> bool:
        """Whether consumers say that they are ready, and settle records decided to them."""

    def is_for(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer may have records: any of a queue, or the single active one."""

    def gone(self) -> LinnError:
        """The error for a consumer of a subscription that was closed."""

    def partition_queue(self, partition: int) -> PartitionQueue:
        """One partition's part of the queue. Raises PartitionUnknown."""

    def set_aside(self, place: int) -> None:
        """Keep a partition's records that came back by a loss for consumers that hold no other such record."""

    def leave(self, consumer: QueueConsumer, partitions: Collection[int], *, is_lost: bool) -> None:
        """Remove a consumer; its leases in these partitions are returned, soon and in turns."""


class QueueConsumer:
    """One competing consumer of this broker's; a `delivery.CompetingConsumer`."""

    kind: Literal[ConsumerKind.SHARED] = ConsumerKind.SHARED

    def __init__(self, queue: CompetedFor, id: int, lease_ms: int, name: str, priority: int = 0) -> None:
        self.id = id
        self.name = name
        """The name that the client gave it, or ""."""
        self.priority = priority
        """Consumers of a higher priority get records first, as long as they want more."""
        self._wants = False
        self.lease_ms = lease_ms
        self.takes_stored = False
        """Ignored: a damaged record of a queue must be found here, where it can become a dead letter."""
        self.accepts: Sequence[int] = NATIVE_ONLY
        self.on_ended: Callable[[], None] = do_nothing
        self.on_released: Callable[[], None] = do_nothing
        self.on_lease_lost: Callable[[int, int], None] = do_nothing
        self.on_active: Callable[[Sequence[int]], None] = do_nothing
        self.held = 0
        self.repeats: deque[tuple[int, DecidedRange]] = deque() if name else NO_REPEATS
        """Records, by partition, that were decided to this name before, and have to be delivered again."""
        self._unrepeatable: deque[tuple[int, DecidedRange]] = deque() if name else NO_REPEATS
        """Decided records that could not be read: they stay decided, and were not delivered."""
        self._decided = 0
        """Records that were decided to this consumer and are not done: a part of `held`."""
        self._queue = queue
        self._woken: trio.Event | None = None
        """Ends the wait for records; None: it has not waited yet."""
        self._is_two_phase = queue.is_two_phase
        self._lease: Lease | None = None
        self._lost: Lease | None = None
        """The latest lease of records that came back because their consumer was lost."""
        self._lease_partition = 0
        self._lease_at = 0
        self._unreadable_left = 0
        """Undecodable records after the last lease: the next lease takes them, regardless of credit."""
        self._leased_in: dict[int, None] = {}
        """Partitions in which it ever had a lease: of thousands, it leaves these."""
        self._closed = False
        self._reason: LinnError | None = None
        """The reason for which the consumer was ended."""

    @property
    def wants(self) -> bool:
        """See `delivery.Consumer.wants`."""
        return self._wants

    @wants.setter
    def wants(self, wants: bool) -> None:
        if wants == self._wants or (wants and self._closed):
            return
        self._wants, queue = wants, self._queue
        if wants:
            queue.ready.claim(self.priority)
        elif queue.ready.unclaim(self.priority) and queue.listed:
            queue.ready.notify()

    @property
    def ended(self) -> bool:
        """See `delivery.Consumer.ended`."""
        return self._queue.closed or self._reason is not None

    @property
    def stands_by(self) -> bool:
        """See `delivery.CompetingConsumer.stands_by`."""
        return not self._queue.is_for(self)

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._queue.topic

    def _check_open(self) -> None:
        """Check that records may be delivered and settled. Raises the reason of the end, or a closed queue's error."""
        if self._reason is not None:
            raise self._reason
        if self._queue.closed or self._closed:
            raise self._queue.gone()

    async def next_from(self, partition: int, start: int, records_max: int, bytes_max: int) -> Delivery:
        """Take ready records of one partition from offset `start` on; without waiting: there may be none.

        Raises PartitionUnknown; SubscriptionWrongKind if records are settled on delivery, or if the topic has an order;
        and the errors of `next`.
        """
        if not self.lease_ms:
            text = f"topic {self._queue.topic} delivers at most once: nothing is taken from the middle of its queue"
            raise SubscriptionWrongKind(text)
        partition_queue = self._queue.partition_queue(partition)
        if partition_queue.subscription.ordering is not None:
            text = f"topic {self._queue.topic} has an order: nothing is taken from the middle of its queue"
            raise SubscriptionWrongKind(text)
        while True:
            self._put_back_rest()
            self._check_open()
            if not self._queue.is_for(self):
                return NOTHING
            lease = partition_queue.acquire(self.id, min(records_max, LEASE_RECORDS_MAX), start)
            if lease is None:
                return NOTHING
            self._begin(partition, lease)
            delivery = await self._deliver(records_max, bytes_max)
            if delivery.batches:
                partition_queue.count_delivered(delivery)
                return delivery

    def _put_back_rest(self) -> None:
        """Return the undelivered part of a lease; the attempt does not count."""
        lease = self._lease
        if lease is not None:
            self._unreadable_left = 0
            self._queue.partition_queues[self._lease_partition].put_back(self.id, lease, self._rest_of(lease), 0.0)
            self._lease = None

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """See `delivery.Consumer.next`."""
        while True:
            if self.repeats:
                delivery = await self._repeat(records_max, bytes_max, deadline)
                if delivery.batches:
                    return delivery
            if not await self._hold_lease(records_max, deadline):
                return NOTHING
            delivery = await self._deliver(records_max, bytes_max)
            if delivery.batches:
                self._queue.partition_queues[delivery.partition].count_delivered(delivery)
                return delivery

    async def _repeat(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """Deliver again the records decided to this name. Records that can't be read stay decided, for an operator.

        Where a decision can't be written now, it waits, up to the deadline: nothing else could be decided either.

        Raises SyncFailed, LogClosed, NotLeader, DeliveryFenced.
        """
        while self.repeats:
            self._check_open()
            place, (first, end, decision) = self.repeats[0]
            partition_queue, name = self._queue.partition_queues[place], decision.holder.name
            if partition_queue.partition.start_offset > first:
                partition_queue.skip_to_start()
            left = partition_queue.subscription.decided_within(first, end, decision)
            if left != [(first, end)]:
                self.repeats.popleft()
                self.repeats.extendleft([(place, DecidedRange(*rest, decision)) for rest in reversed(left)])
                continue
            try:
                await partition_queue.log.until_committed()
            except (SyncFailed, LogClosed, NotLeader):
                raise
            except StorageError:
                if not await deadline.wait(partial(partition_queue.clock.sleep, ROOM_RETRY_S)):
                    return NOTHING
                continue
            try:
                stop = min(end, first + records_max)
                batches = await partition_queue.partition.read_range(first, stop, bytes_max, self.accepts)
            except (SyncFailed, LogClosed, NotLeader):
                raise
            except (StorageError, OffsetOutOfRange, BatchMalformed, FormatUnknown) as error:
                if self.repeats and self.repeats[0] == (place, DecidedRange(first, end, decision)):
                    self._unrepeatable.append(self.repeats.popleft())
                text = (
                    "%(partition)s: records %(first)d to %(last)d were decided to %(name)s and can't be read: %(error)s"
                )
                about = {"partition": str(partition_queue.partition.id), "first": first, "last": end - 1, "name": name}
                logger.error(text, about | log_fields(error))
                continue
            self._check_open()
            if not self.repeats or self.repeats[0] != (place, DecidedRange(first, end, decision)):
                continue  # An operator has ended it meanwhile.
            self.repeats.popleft()
            stop = batches[-1].end_offset if batches else end
            if stop < end:
                self.repeats.appendleft((place, DecidedRange(stop, end, decision)))
            self.held += stop - first
            self._decided += stop - first
            settled = partition_queue.log.settled_durably()
            return Delivery(place, decision.delivery_id, decision.attempt, batches, 0, Phase.COMMIT, settled)
        return NOTHING

    def decision_ended(self, place: int, ended: DecidedRange) -> None:
        """Record that records, all or some of a decision's, are no longer decided to this consumer."""
        delivered = ended.end - ended.first
        for waiting in (self.repeats, self._unrepeatable):
            delivered -= take_out(waiting, place, ended)
        if delivered:
            self._undecide(delivered)

    @property
    def decided_count(self) -> int:
        """The number of records that were decided to this consumer, and delivered to it, and are not done."""
        return self._decided

    def _undecide(self, records: int) -> None:
        records = min(records, self._decided)
        self._decided -= records
        self.held -= records
        self.on_released()

    def hold(self, settlement: Settlement, holder: str) -> PartitionQueue:
        """Take leased records out of their lease for a transaction, which acks or returns them at its end.

        Returns their partition's part of the queue: call `log.flush`.

        Raises DeliveryNotCurrent, DeliveryFenced, TopicUnknown, PartitionUnknown, LimitExceeded, SubscriptionWrongKind.
        """
        self._check_open()
        if settlement.verdict != Verdict.ACK or self._is_two_phase or not self.lease_ms:
            raise SubscriptionWrongKind(
                "a transaction acks records of a queue that delivers at least once, and no more"
            )
        partition_queue = self._queue.partition_queue(settlement.partition)
        ranges = None if settlement.is_whole else [(settlement.first, settlement.end)]
        now, since = partition_queue.clock.monotonic(), Holder(holder, partition_queue.clock.now_ms())
        partition_queue.subscription.decide(self.id, settlement.delivery_id, ranges, since, now)
        return partition_queue

    def resolve(
        self, partition: int, delivery_id: int, first: int, end: int
    ) -> tuple[bool, Sequence[tuple[Mark, int]]]:
        """Answer whether [first, end) was decided to this consumer by a delivery, and the marks to wait for first.

        If it was not, it is aborted. Raises PartitionUnknown, DeliveryFenced, TopicUnknown, StorageError.
        """
        self._check_open()
        partition_queue = self._queue.partition_queue(partition)
        is_decided = partition_queue.resolve(self.id, self.name, delivery_id, first, end)
        awaited = partition_queue.log.flush()
        return is_decided, [awaited] if awaited is not None else []

    def released(self, partition: int, lease: Lease, ranges: Sequence[Range], lost: bool) -> None:
        """Record that a lease of this consumer no longer holds these offsets."""
        # Of the lease in delivery, offsets further on were never handed over.
        end = self._lease_at if lease is self._lease else lease.end
        for first, stop in ranges:
            if first < end:
                self.held -= min(stop, end) - first
        if lost and lease.ended:
            self.on_lease_lost(partition, lease.delivery_id)
        if lease is self._lost and lease.ended and self._queue.aside:
            self.wake()
        self.on_released()

    async def _hold_lease(self, records_max: int, deadline: WaitDeadline) -> bool:
        """Wait until there is a lease with records to deliver; False if the deadline came first."""
        ready = self._queue.ready
        while self._lease is None or (self._lease.ended and self.lease_ms):
            # A lease that has ended expired, or its records were dropped: the rest belongs to others by now.
            self._lease = None
            if self.ended or self._closed:
                ready.notify()  # Passes the wake-up on to another consumer.
            self._check_open()
            wanted = min(max(records_max, self._unreadable_left), LEASE_RECORDS_MAX)
            if not self._acquire(wanted) and not await deadline.wait(self._until_work):
                if self._reason is not None:
                    raise self._reason  # Both came at once: the reason is news.
                return False
        return True

    async def _until_work(self) -> None:
        """Wait until there may be records, or `wake` is called."""
        self._woken = trio.Event()
        if self._queue.is_for(self):
            await self._queue.ready.wait(self.priority, self._woken)
        else:
            await self._woken.wait()

    def wake(self) -> None:
        """End the wait for records, because the queue is for this consumer now, or no longer."""
        if self._woken is not None:
            self._woken.set()

    @property
    def holds_lost(self) -> bool:
        """Whether it holds a lease of records that came back by a loss: then it gets no other one, so that the next
        loss tells which of them are suspect."""
        return self._lost is not None and not self._lost.ended

    def _acquire(self, records_max: int) -> bool:
        queue = self._queue
        if not queue.is_for(self):
            return False
        while queue.listed and not queue.ready.gives_way(self.priority):
            place = next(iter(queue.listed))
            queue.listed.move_to_end(place)  # First: one that raises must not keep the others from being asked.
            partition_queue = queue.partition_queues[place]
            try:
                lease = partition_queue.acquire(self.id, records_max, skips_lost=self.holds_lost)
            except StorageError:
                if len(queue.listed) > 1:
                    queue.ready.notify()  # Another partition may have something for another waiting consumer.
                raise
            is_ready = partition_queue.is_ready()
            if lease is None or not is_ready:
                del queue.listed[place]
            if lease is not None:
                self._begin(place, lease)
                if queue.listed:
                    queue.ready.notify()
                return True
            if is_ready:
                queue.set_aside(place)
        while queue.aside and not self.holds_lost:
            place = next(iter(queue.aside))
            lease = queue.partition_queues[place].acquire(self.id, records_max)
            if lease is None:
                del queue.aside[place]
                continue
            self._begin(place, lease)
            return True
        return False

    def _begin(self, place: int, lease: Lease) -> None:
        """Begin to deliver a lease."""
        self._lease, self._lease_partition, self._lease_at = lease, place, lease.first
        self._leased_in[place] = None
        if lease.is_lost:
            self._lost = lease

    async def _deliver(self, records_max: int, bytes_max: int) -> Delivery:
        lease = self._lease
        assert lease is not None
        partition_queue = self._queue.partition_queues[self._lease_partition]
        # Records dropped by retention meanwhile are skipped.
        first = max(self._lease_at, min(partition_queue.partition.start_offset, lease.end))
        ranges = lowest_of(lease.granted_from(first), records_max)
        first, end = (ranges[0][0], ranges[-1][1]) if ranges else (lease.end, lease.end)
        try:
            batches = await partition_queue.read(ranges, bytes_max, self.accepts) if ranges else ()
        except OffsetOutOfRange:
            if partition_queue.partition.start_offset > first:
                return NOTHING  # Retention was faster; the next attempt begins after it.
            self._abandon(partition_queue, lease)
            raise
        except BatchMalformed as error:
            await self._bury(partition_queue, lease, first, error)
            return NOTHING
        except (SyncFailed, LogClosed, NotLeader):
            self._abandon(partition_queue, lease)
            raise
        except (StorageError, FormatUnknown) as error:  # The plugin that reads the format may be back soon.
            await self._put_back(partition_queue, lease, first, error)
            return NOTHING
        except BaseException:
            # Also when cancelled: records that were not handed over are returned.
            self._abandon(partition_queue, lease)
            raise
        behind = batches[-1].end_offset if batches else lease.end
        if (expiry := partition_queue.expiry) is not None and (overdue := expiry.overdue(batches)):
            if self.lease_ms:
                expiry.expire_leased(self.id, lease, overdue)
                self._put_back_rest()
                return NOTHING
            batches = expiry.fresh(batches, overdue, self.accepts)
        has_gap = not batches or batches[0].base_offset > first or partition_queue.partition.transactions.markers
        if has_gap and self.lease_ms:  # Of a log that was thinned, or with markers.
            read_to = batches[-1].end_offset if batches else end
            void = [gap for start, stop in ranges for gap in uncovered(batches, start, min(stop, read_to))]
            if void:
                with contextlib.suppress(DeliveryNotCurrent):  # It expired meanwhile.
                    now, subscription = partition_queue.clock.monotonic(), partition_queue.subscription
                    partition_queue.follow(subscription.settle_void_leased(self.id, lease.delivery_id, void, now))
        delivery = Delivery(self._lease_partition, lease.delivery_id, lease.attempt, batches)
        if self._is_two_phase:
            delivery = replace(delivery, phase=Phase.PREPARE, settled_before=partition_queue.log.settled_durably())
        if self.lease_ms:
            if lease.ended or self._reason is not None:
                return NOTHING  # It ended while it was read; the records' next holder must be the only one.
            self.held += lease.count_within(first, batches[-1].end_offset) if batches else 0
        self._go_on(partition_queue, lease, behind)
        if self.lease_ms:
            self._put_back_rest()  # A lease is of one delivery: who settles it whole settles what has arrived.
        return delivery

    def _go_on(self, partition_queue: PartitionQueue, lease: Lease, offset: int) -> None:
        self._lease_at = offset
        self._unreadable_left = 0
        if offset >= lease.end:
            self._lease = None
            partition_queue.handed_over(self.id)

    async def _put_back(self, partition_queue: PartitionQueue, lease: Lease, first: int, error: LinnError) -> None:
        """Return records that can't be read now, for a time, and continue with others."""
        end, delay_s = lease.end, 0.0
        if isinstance(error, LogCorrupt):
            try:
                end, delay_s = min(end, (await partition_queue.damage.find(first, error)).stop), DAMAGED_RETRY_S
            except BaseException:
                self._abandon(partition_queue, lease)
                raise
        else:
            partition_queue.rest(error)
        ranges = [(max(begin, first), min(stop, end)) for begin, stop in lease.ranges()]
        partition_queue.put_back(self.id, lease, [(begin, stop) for begin, stop in ranges if begin < stop], delay_s)
        self._go_on(partition_queue, lease, end)

    async def _bury(self, partition_queue: PartitionQueue, lease: Lease, first: int, error: BatchMalformed) -> None:
        """Make dead letters of one batch's undecodable records, and continue after it."""
        if first not in partition_queue.unreadable:
            try:
                batch = await partition_queue.partition.batch_at(first)
            except OffsetOutOfRange:
                return  # Retention was faster; the next attempt begins after it.
            except BaseException:
                self._abandon(partition_queue, lease)
                raise
            partition_queue.unreadable = range(batch.base_offset, batch.end_offset)
            text = "topic %(topic)s: %(count)d records that do_nothing can read are dead letters: %(error)s"
            logger.error(text, {"topic": self._queue.topic, "count": batch.count} | log_fields(error))
        partition_queue.reject_unreadable(self.id, lease)
        behind = partition_queue.unreadable.stop
        self._go_on(partition_queue, lease, behind)
        self._unreadable_left = max(0, behind - lease.end) if lease.granted is None else 0

    def _abandon(self, partition_queue: PartitionQueue, lease: Lease) -> None:
        self._give_back(partition_queue, lease)
        self._lease = None
        partition_queue.handed_over(self.id)

    def _give_back(self, partition_queue: PartitionQueue, lease: Lease) -> None:
        partition_queue.return_unsent(self.id, lease.delivery_id, self._rest_of(lease))

    def _rest_of(self, lease: Lease) -> list[Range]:
        """The undelivered part of the lease in delivery."""
        return [(max(first, self._lease_at), end) for first, end in lease.ranges() if end > self._lease_at]

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """See `delivery.Consumer.settle`."""
        refused: list[tuple[int, LinnError]] = []
        awaits: dict[int, tuple[Mark, int]] = {}
        touched: dict[int, PartitionQueue] = {}
        done = 0
        for index, settlement in enumerate(settlements):
            if done >= SETTLE_STEP:
                done = 0
                with contextlib.suppress(StorageError):  # The events wait for the next flush.
                    self._flush(touched, awaits)
                yield
            done += 1
            try:
                if self._reason is not None or self._queue.closed:
                    self._check_open()
                partition_queue = self._queue.partition_queue(settlement.partition)
                effects = partition_queue.settle(self.id, settlement, self.name)
                if effects.decided:
                    self._queue.decisions += 1
                    self.held += effects.decided
                    self._decided += effects.decided
                elif settlement.verdict == Verdict.DONE:
                    self._undecide(effects.settled)
                touched[settlement.partition] = partition_queue
                if sum(effects) > 1:  # What is left of a lease may be thousands of ranges.
                    done = max(done, partition_queue.subscription.events_waiting)
            except LinnError as error:
                refused.append((index, error))
        self._flush(touched, awaits)
        return SettleOutcome(refused, list(awaits.values()))

    @staticmethod
    def _flush(touched: dict[int, PartitionQueue], awaits: dict[int, tuple[Mark, int]]) -> None:
        """Write the events of touched partitions, and note the marks to wait for. Raises StorageError."""
        while touched:
            place, partition_queue = next(iter(touched.items()))
            awaited = partition_queue.log.flush()
            if awaited is not None:
                awaits[place] = awaited
            del touched[place]

    def is_holding(self) -> bool:
        """Whether records are leased or decided to this consumer."""
        return self._decided > 0 or any(
            self._queue.partition_queues[place].subscription.leases_of(self.id) for place in self._leased_in
        )

    def end(self, reason: LinnError) -> None:
        """See `delivery.Consumer.end`: leased records are returned."""
        on_ended, self._reason = self.on_ended, reason
        self._leave(is_lost=True)
        self.wake()
        on_ended()

    def close(self) -> None:
        """Leave; leased records are returned soon, and can't be settled until then."""
        self._leave(is_lost=False)

    def _leave(self, *, is_lost: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self.wants = False
        if self.lease_ms:
            self._lease = None  # Nothing more of it is delivered.
        # The callees refer to this consumer.
        self.on_ended = self.on_released = self.on_lease_lost = self.on_active = do_nothing
        self._queue.leave(self, self._leased_in, is_lost=is_lost)

    def disconnect(self) -> Steps[None]:
        """Leave, because the connection was lost: the queue returns leases in turns of its own."""
        self._leave(is_lost=True)
        return no_steps()
