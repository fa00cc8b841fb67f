"""A shared subscription over all partitions of a topic, and the consumers that compete for it.

It is the queue of a topic that is one, or a named subscription of a stream.

Laws: a name is held by one consumer; another one of that name fences it, and its leases are returned at once. When
another broker leads the topic, the queue is abandoned: its consumers end with that reason, and nothing is written. A
consumer gets the lowest ready records of the partition that was asked longest ago, so that none starves. Records go to
the waiting consumers of the highest priority, or to the single active one. Only partitions that may have ready records
are listed; the others, of which there may be thousands, are not asked.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import trio

from linn.core.batch.steps import TURN_S
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    DeliveryFenced,
    LinnError,
    PartitionUnknown,
    SharedUnknown,
    TopicUnknown,
)
from linn.core.loop.waiting import RankedSignal
from linn.core.queue.consumer import QueueConsumer
from linn.core.queue.lease import Lease
from linn.core.queue.offset_ranges import Range
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.record_states import DecidedRange
from linn.core.queue.single_active import SingleActive

PARTITIONS_IN_A_TURN = 16
"""Partitions whose oldest ready records are read without a pause, in about a millisecond."""


class Queue:
    """One shared subscription of one topic."""

    def __init__(self, topic: str, name: str = "") -> None:
        self.topic = topic
        self.name = name
        """The name of a stream's subscription; "": it is the topic's own queue."""
        self.ready = RankedSignal()
        self.partition_queues: list[PartitionQueue] = []
        self.listed: OrderedDict[int, None] = OrderedDict()
        """Partitions that may have ready records, the one asked longest ago first."""
        self.aside: dict[int, None] = {}
        """Partitions whose ready records came back by a loss, and are for consumers that hold no other such lease."""
        self.consumers: dict[int, QueueConsumer] = {}
        """Consumers by id."""
        self.closed = False
        self.decisions = 0
        """Deliveries, or parts of them, that were decided to their consumers."""
        self.resolutions = 0
        """Decided ranges that an operator has ended."""
        self.lost_consumers = 0
        """Consumers that had been given records, and did not leave by themselves."""
        self.single: SingleActive | None = None
        """Chooses the single active consumer; None: all consumers get records."""
        self.on_used: Callable[[], None] | None = None
        """Called when a consumer has come or left."""
        self.oldest_ready_ms: int | None = None
        """The result of the last `find_oldest_ready`."""
        self._oldest: dict[int, tuple[range, int]] = {}
        """By partition, the offsets of the batch that held the oldest ready record, and its append time."""
        self._reason: NotLeader | None = None
        """The reason for which it was abandoned."""
        self._by_name: dict[str, QueueConsumer] = {}
        self._consumer_ids = itertools.count(1)
        self._gone: deque[tuple[int, Iterable[int], bool]] = deque()
        """Consumers that have left, with the partitions in which they may hold leases, and whether they were lost."""

    def extend(self, partition_queues: Sequence[PartitionQueue], *, is_single: bool = False) -> None:
        """Add partitions to deliver from. `is_single`: only to the single active consumer, from now on."""
        places = range(len(self.partition_queues), len(self.partition_queues) + len(partition_queues))
        self.partition_queues += partition_queues
        for place, partition_queue in zip(places, partition_queues, strict=True):
            partition_queue.subscription.tell_released(partial(self._released, place))
            partition_queue.on_undecided = partial(self.decision_ended, place)
            self.has_ready(place)
        if self.single is not None:
            self.single.reconsider()
        self._set_single(is_single=is_single)

    def _released(self, partition: int, lease: Lease, ranges: Sequence[Range], lost: bool) -> None:
        consumer = self.consumers.get(lease.consumer)
        if consumer is not None and consumer.lease_ms:
            consumer.released(partition, lease, ranges, lost)

    def has_ready(self, place: int) -> None:
        """List a partition that has new records to deliver."""
        if place < len(self.partition_queues):
            self.listed[place] = None
            self.ready.notify()

    def _set_single(self, *, is_single: bool) -> None:
        """Give records to the single active consumer only, or to all. Leases of the others last as they would."""
        if is_single == (self.single is not None):
            return
        if self.single is not None:
            self.single.close()
        self.single = SingleActive(self) if is_single else None
        for consumer in self.consumers.values():
            consumer.wake()
        self.ready.notify()

    def is_for(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer may have records: any, or the single active one."""
        return self.single is None or self.single.active is consumer

    def join(self, lease_ms: int, name: str = "", priority: int = 0) -> QueueConsumer:
        """Add a consumer; one of the same name that is there already is fenced, unless the name is ""."""
        if name in self._by_name:
            text = f"another consumer of {self.topic} has taken over the name {name}"
            self._by_name[name].end(DeliveryFenced(text))
        consumer = QueueConsumer(self, next(self._consumer_ids), lease_ms, name, priority)
        self.consumers[consumer.id] = consumer
        if name:
            self._by_name[name] = consumer
            consumer.repeats.extend(self._decided_to(name))
        if self.single is not None:
            self.single.joined(consumer)
        if self.on_used is not None:
            self.on_used()
        return consumer

    def _decided_to(self, name: str) -> Iterator[tuple[int, DecidedRange]]:
        """Records that were decided to a consumer of this name before, by partition."""
        for place, partition_queue in enumerate(self.partition_queues):
            if partition_queue.subscription.decided_count:
                yield from [(place, decided) for decided in partition_queue.subscription.decided_to(name)]

    def is_connected(self, name: str) -> bool:
        """Whether a consumer of this name is here."""
        return name in self._by_name

    @property
    def is_two_phase(self) -> bool:
        """Whether consumers say that they are ready, and settle records decided to them."""
        return self.partition_queues[0].subscription.semantics.is_two_phase

    def decision_ended(self, place: int, decided: DecidedRange) -> None:
        """Record that an operator has ended a decision: its holder, if it is here, no longer has these records."""
        consumer = self._by_name.get(decided.decision.holder.name)
        if consumer is not None:
            consumer.decision_ended(place, decided)

    def gone(self) -> LinnError:
        """The error for a consumer of a subscription that was closed or abandoned."""
        if self._reason is not None:
            return self._reason
        if self.name:
            return SharedUnknown(f"topic {self.topic} no longer has a shared subscription {self.name}")
        return TopicUnknown(f"topic {self.topic} is gone")

    def set_aside(self, place: int) -> None:
        """Keep a partition's records that came back by a loss for consumers that hold no other such record."""
        if place not in self.aside:
            self.aside[place] = None
            for consumer in self.consumers.values():
                if not consumer.holds_lost:
                    consumer.wake()

    def leave(self, consumer: QueueConsumer, partitions: Collection[int], *, is_lost: bool) -> None:
        """Remove a consumer; its leases in these partitions are returned, soon and in turns.

        `is_lost`: it did not leave by itself.
        """
        del self.consumers[consumer.id]
        if self._by_name.get(consumer.name) is consumer:
            del self._by_name[consumer.name]
        if partitions and not self.closed:
            self.lost_consumers += is_lost
            self._gone.append((consumer.id, partitions, is_lost))
            if len(self._gone) == 1:
                self.partition_queues[0].spawn(self._return_held)
        if self.single is not None:
            self.single.reconsider()
        if self.on_used is not None:
            self.on_used()

    async def _return_held(self) -> None:
        # An entry stays until it is finished, so that no second task is started.
        monotonic = self.partition_queues[0].clock.monotonic
        until_s = monotonic() + TURN_S
        try:
            while self._gone:
                consumer, partitions, is_lost = self._gone[0]
                for partition in partitions:
                    await self.partition_queues[partition].consumer_gone(consumer, is_lost=is_lost)
                    if monotonic() > until_s:
                        await trio.lowlevel.checkpoint()
                        until_s = monotonic() + TURN_S
                self._gone.popleft()
        finally:
            self._gone.clear()

    def partition_queue(self, partition: int) -> PartitionQueue:
        """One partition's part of the queue. Raises PartitionUnknown."""
        if not 0 <= partition < len(self.partition_queues):
            raise PartitionUnknown(f"topic {self.topic} has no partition {partition}")
        return self.partition_queues[partition]

    def unsettled_count(self) -> int:
        """The number of unsettled records in all partitions."""
        return sum(it.subscription.unsettled_count(it.partition.stable_offset) for it in self.partition_queues)

    async def find_oldest_ready(self) -> int | None:
        """Find the append time of the oldest ready record, in milliseconds since 1970. None: no record is ready, or the
        log can't be read now.

        Reads a batch of each partition whose oldest ready record lies in another one than at the last call.
        """
        found: list[int] = []
        for place, it in enumerate(list(self.partition_queues)):
            if place % PARTITIONS_IN_A_TURN == 0:  # A read of the page cache is no pause.
                await trio.lowlevel.checkpoint()
            offset = it.subscription.lowest_ready(it.partition.stable_offset) if it.log.is_open else None
            if offset is None:
                continue
            offsets, appended_ms = self._oldest.get(place, (range(0), 0))
            if offset not in offsets:
                try:
                    batch = await it.partition.batch_at(offset)
                except LinnError:
                    continue  # It was trimmed meanwhile, or its consumers will find the damage.
                offsets, appended_ms = range(batch.base_offset, batch.end_offset), batch.append_time_ms
                self._oldest[place] = offsets, appended_ms
            found.append(appended_ms)
        self.oldest_ready_ms = min(found, default=None)
        return self.oldest_ready_ms

    def oldest_ready_s(self, now_ms: int) -> float:
        """The age of the record that the last `find_oldest_ready` found; 0: there was none."""
        return 0.0 if self.oldest_ready_ms is None else max(0, now_ms - self.oldest_ready_ms) / 1000

    async def close(self) -> None:
        """Wake all consumers with an error and stop delivering."""
        self.closed = True
        self.ready.notify_all()
        for consumer in self.consumers.values():
            consumer.wake()
            consumer.on_ended()
        for partition_queue in self.partition_queues:
            await partition_queue.close()

    def end_consumers(self) -> None:
        """End all consumers because the topic is deleted."""
        for consumer in list(self.consumers.values()):
            consumer.end(self.gone())

    def abandon(self, reason: NotLeader) -> None:
        """End because another broker leads the topic, or none: consumers end with the reason.

        Nothing is written, and nothing of the queue touches a log any more. Can be repeated.
        """
        if self._reason is not None:
            return
        self.closed, self._reason = True, reason
        for partition_queue in self.partition_queues:
            partition_queue.abandon(reason)
        for consumer in list(self.consumers.values()):
            consumer.end(reason)
        self.ready.notify_all()
