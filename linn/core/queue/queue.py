"""A topic's queue: one shared subscription over all its partitions, and the consumers that compete for it.

Laws: a consumer gets the lowest ready records of the partition that was asked longest ago, so that none starves. A
partition that has something ready is listed; the others, of which there may be thousands, are not asked.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import trio

from linn.core.batch.steps import TURN_S
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    BatchMalformed,
    LinnError,
    LogClosed,
    LogCorrupt,
    OffsetOutOfRange,
    PartitionUnknown,
    StorageError,
    SyncFailed,
    TopicUnknown,
)
from linn.core.log.delivery import NOTHING, Delivery, Patience, ReadySignal, Settlement, SettleOutcome, nobody
from linn.core.log.partition import Partition
from linn.core.queue.lease import Lease
from linn.core.queue.offset_ranges import Range
from linn.core.queue.shared_dispatch import SharedDispatch

DAMAGED_RETRY_S = 300.0
"""How often damaged records are looked at again: somebody may have put a whole file in the place of a damaged one."""
LEASE_RECORDS_MAX = 16_384
"""Records of one lease: a consumer with a huge credit still leaves something to the others."""

logger = logging.getLogger("linn.queue")
_consumer_ids = itertools.count(1)


class Queue:
    """The shared subscription of one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.ready = ReadySignal()
        self.dispatches: list[SharedDispatch] = []
        self.listed: OrderedDict[int, None] = OrderedDict()
        """Partitions that may have something ready, those first that were asked longest ago."""
        self.consumers: dict[int, QueueConsumer] = {}
        """By their ids."""
        self.closed = False
        self._gone: deque[tuple[int, Iterable[int]]] = deque()
        """Consumers that have left, with the partitions in which they may hold something."""

    def extend(self, dispatches: Sequence[SharedDispatch]) -> None:
        """Deliver from more partitions."""
        places = range(len(self.dispatches), len(self.dispatches) + len(dispatches))
        self.dispatches += dispatches
        for place, dispatch in zip(places, dispatches, strict=True):
            dispatch.subscription.tell_released(partial(self._released, place))
            self.has_ready(place)

    def _released(self, partition: int, lease: Lease, ranges: Sequence[Range], lost: bool) -> None:
        consumer = self.consumers.get(lease.consumer)
        if consumer is not None and consumer.lease_ms:
            consumer.released(partition, lease, ranges, lost)

    def has_ready(self, place: int) -> None:
        """A partition has something to deliver that it did not have before."""
        if place < len(self.dispatches):
            self.listed[place] = None
            self.ready.notify()

    def join(self, lease_ms: int) -> QueueConsumer:
        """A new consumer."""
        consumer = QueueConsumer(self, next(_consumer_ids), lease_ms)
        self.consumers[consumer.id] = consumer
        return consumer

    def leave(self, consumer: QueueConsumer, partitions: Collection[int]) -> None:
        """A consumer takes nothing any more; what it holds in these partitions is returned, soon and in turns."""
        del self.consumers[consumer.id]
        if partitions and not self.closed:
            self._gone.append((consumer.id, partitions))
            if len(self._gone) == 1:
                self.dispatches[0].spawn(self._return_held)

    async def _return_held(self) -> None:
        # An entry stays until it is done with, so that nobody begins a second task.
        monotonic = self.dispatches[0].clock.monotonic
        until_s = monotonic() + TURN_S
        try:
            while self._gone:
                consumer, partitions = self._gone[0]
                for partition in partitions:
                    await self.dispatches[partition].consumer_gone(consumer)
                    if monotonic() > until_s:
                        await trio.lowlevel.checkpoint()
                        until_s = monotonic() + TURN_S
                self._gone.popleft()
        finally:
            self._gone.clear()

    def dispatch(self, partition: int) -> SharedDispatch:
        """The part of one partition. Raises PartitionUnknown."""
        if not 0 <= partition < len(self.dispatches):
            raise PartitionUnknown(f"topic {self.topic} has no partition {partition}")
        return self.dispatches[partition]

    def unsettled_count(self) -> int:
        """Records that are not settled, in all partitions."""
        return sum(d.subscription.unsettled_count(d.partition.high_watermark) for d in self.dispatches)

    async def close(self) -> None:
        """Wake all consumers with an error and stop the dispatches."""
        self.closed = True
        self.ready.notify_all()
        for consumer in self.consumers.values():
            consumer.on_ended()
        for dispatch in self.dispatches:
            await dispatch.close()


class QueueConsumer:
    """One competing consumer; a `delivery.Consumer`."""

    def __init__(self, queue: Queue, id: int, lease_ms: int) -> None:
        self.id = id
        self.lease_ms = lease_ms
        self.takes_stored = False
        """Has no effect: a damaged record of a queue must be found here, where it can become a dead letter."""
        self.on_ended: Callable[[], None] = nobody
        self.on_released: Callable[[], None] = nobody
        self.on_lease_lost: Callable[[int, int], None] = nobody
        self.held = 0
        self._queue = queue
        self._lease: Lease | None = None
        self._lease_partition = 0
        self._lease_at = 0
        self._unreadable_left = 0
        """Records behind the last lease that can't be decoded either: the next lease takes them, credit or not."""
        self._leased_in: dict[int, None] = {}
        """Partitions in which it was given something, ever: of thousands, it leaves these."""
        self._closed = False

    @property
    def ended(self) -> bool:
        """See `delivery.Consumer.ended`."""
        return self._queue.closed

    async def next(self, records_max: int, bytes_max: int, patience: Patience) -> Delivery:
        """See `delivery.Consumer.next`."""
        while True:
            if not await self._hold_lease(records_max, patience):
                return NOTHING
            delivery = await self._deliver(records_max, bytes_max)
            if delivery.batches:
                self._queue.dispatches[delivery.partition].count_delivered(delivery)
                return delivery

    def released(self, partition: int, lease: Lease, ranges: Sequence[Range], lost: bool) -> None:
        """A lease of this consumer holds these offsets no more."""
        # Of the lease that is being delivered, what lies behind was never handed over.
        end = self._lease_at if lease is self._lease else lease.end
        self.held -= sum([min(stop, end) - first for first, stop in ranges if first < end])
        if lost and lease.ended:
            self.on_lease_lost(partition, lease.delivery_id)
        self.on_released()

    async def _hold_lease(self, records_max: int, patience: Patience) -> bool:
        """Wait until there is a lease of which something is to be delivered; False where patience ended first."""
        ready = self._queue.ready
        while self._lease is None or (self._lease.ended and self.lease_ms):
            # A lease that has ended has expired, or its records were dropped: the rest of it is others' by now.
            self._lease = None
            if self._queue.closed or self._closed:
                ready.notify()  # Whom the wake-up would have gone to.
                raise TopicUnknown(f"topic {self._queue.topic} is gone")
            wanted = min(max(records_max, self._unreadable_left), LEASE_RECORDS_MAX)
            if not self._acquire(wanted) and not await patience.wait(ready.wait):
                return False
        return True

    def _acquire(self, records_max: int) -> bool:
        queue = self._queue
        while queue.listed:
            place = next(iter(queue.listed))
            queue.listed.move_to_end(place)  # First of all: one that raises must not keep the others from being asked.
            dispatch = queue.dispatches[place]
            try:
                lease = dispatch.acquire(self.id, records_max)
            except StorageError:
                if len(queue.listed) > 1:
                    queue.ready.notify()  # Another partition may have something, for somebody else who waits.
                raise
            if lease is None or not dispatch.is_ready():
                del queue.listed[place]
            if lease is not None:
                self._lease, self._lease_partition, self._lease_at = lease, place, lease.first
                self._leased_in[place] = None
                if queue.listed:
                    queue.ready.notify()
                return True
        return False

    async def _deliver(self, records_max: int, bytes_max: int) -> Delivery:
        lease = self._lease
        assert lease is not None
        dispatch = self._queue.dispatches[self._lease_partition]
        # What retention has dropped meanwhile is passed over.
        first = max(self._lease_at, min(dispatch.partition.start_offset, lease.end))
        end = min(lease.end, first + records_max)
        try:
            batches = await dispatch.read(first, end, bytes_max) if first < end else ()
        except OffsetOutOfRange:
            if dispatch.partition.start_offset > first:
                return NOTHING  # Retention was quicker; the next attempt begins behind it.
            self._abandon(dispatch, lease)
            raise
        except BatchMalformed as error:
            await self._bury(dispatch, lease, first, error)
            return NOTHING
        except (SyncFailed, LogClosed):
            self._abandon(dispatch, lease)
            raise
        except StorageError as error:
            await self._put_back(dispatch, lease, first, error)
            return NOTHING
        except BaseException:
            # Also when cancelled: records that were not handed over go back to their place.
            self._abandon(dispatch, lease)
            raise
        delivery = Delivery(self._lease_partition, lease.delivery_id, lease.attempt, batches)
        if self.lease_ms:
            if lease.ended:
                return NOTHING  # While it was read; who has the records next must be the only one.
            self.held += lease.count_within(first, batches[-1].end_offset) if batches else 0
        self._go_on(dispatch, lease, batches[-1].end_offset if batches else lease.end)
        return delivery

    def _go_on(self, dispatch: SharedDispatch, lease: Lease, offset: int) -> None:
        self._lease_at = offset
        self._unreadable_left = 0
        if offset >= lease.end:
            self._lease = None
            dispatch.handed_over(self.id)

    async def _put_back(self, dispatch: SharedDispatch, lease: Lease, first: int, error: StorageError) -> None:
        """Give back, for a time, what can't be read now, and go on with other records."""
        end, delay_s = lease.end, 0.0
        if isinstance(error, LogCorrupt):
            try:
                end, delay_s = min(end, (await dispatch.find_damage(first, error)).stop), DAMAGED_RETRY_S
            except BaseException:
                self._abandon(dispatch, lease)
                raise
        else:
            dispatch.rest(error)
        ranges = [(max(begin, first), min(stop, end)) for begin, stop in lease.ranges()]
        dispatch.put_back(self.id, lease, [(begin, stop) for begin, stop in ranges if begin < stop], delay_s)
        self._go_on(dispatch, lease, end)

    async def _bury(self, dispatch: SharedDispatch, lease: Lease, first: int, error: BatchMalformed) -> None:
        """Make dead letters of the records of one batch that can't be decoded, and go on behind it."""
        if first not in dispatch.unreadable:
            try:
                batch = await dispatch.partition.batch_at(first)
            except OffsetOutOfRange:
                return  # Retention was quicker; the next attempt begins behind it.
            except BaseException:
                self._abandon(dispatch, lease)
                raise
            dispatch.unreadable = range(batch.base_offset, batch.end_offset)
            text = "topic %(topic)s: %(count)d records that nobody can read are dead letters: %(error)s"
            logger.error(text, {"topic": self._queue.topic, "count": batch.count} | log_fields(error))
        dispatch.reject_unreadable(self.id, lease)
        behind = dispatch.unreadable.stop
        self._go_on(dispatch, lease, behind)
        self._unreadable_left = max(0, behind - lease.end)

    def _abandon(self, dispatch: SharedDispatch, lease: Lease) -> None:
        self._give_back(dispatch, lease)
        self._lease = None
        dispatch.handed_over(self.id)

    def _give_back(self, dispatch: SharedDispatch, lease: Lease) -> None:
        rest = [(max(first, self._lease_at), end) for first, end in lease.ranges() if end > self._lease_at]
        dispatch.return_unsent(self.id, lease.delivery_id, rest)

    def settle(self, settlements: Sequence[Settlement]) -> SettleOutcome:
        """See `delivery.Consumer.settle`."""
        refused: list[tuple[int, LinnError]] = []
        touched: dict[int, SharedDispatch] = {}
        if self._queue.closed:
            gone = TopicUnknown(f"topic {self._queue.topic} is gone")
            return SettleOutcome([(index, gone) for index in range(len(settlements))], ())
        for index, settlement in enumerate(settlements):
            try:
                dispatch = self._queue.dispatch(settlement.partition)
                dispatch.settle(self.id, settlement)
                touched[settlement.partition] = dispatch
            except LinnError as error:
                refused.append((index, error))
        return SettleOutcome(refused, self._flush(touched.values()))

    @staticmethod
    def _flush(dispatches: Iterable[SharedDispatch]) -> list[tuple[Partition, int]]:
        awaits: list[tuple[Partition, int]] = []
        for dispatch in dispatches:
            position = dispatch.flush()
            if dispatch.state is not None:
                awaits.append((dispatch.state.partition, position))
        return awaits

    def is_holding(self) -> bool:
        """Whether records are leased to this consumer."""
        return any(self._queue.dispatches[place].subscription.holds(self.id) for place in self._leased_in)

    def close(self) -> None:
        """Leave; everything leased is returned soon, and nobody can settle it until then."""
        if self._closed:
            return
        self._closed = True
        if self.lease_ms:
            self._lease = None  # Nothing more of it is delivered.
        self.on_ended = self.on_released = self.on_lease_lost = nobody  # Who is told knows this consumer.
        self._queue.leave(self, self._leased_in)
