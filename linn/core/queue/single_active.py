"""The single active consumer of a queue with `consumers = "one"`.

Laws: the active consumer has the highest priority, and is the oldest of that priority. A takeover waits until no other
consumer holds a record in any partition; meanwhile no consumer gets records. So two consumers never work on records of
the queue at the same time. Records that were decided to a consumer that is lost stay decided until it comes back, and
hold up no takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from linn.core.queue.event_run import is_transactions
from linn.core.queue.partition_queue import PartitionQueue

STALE_MIN = 64
"""Entries of consumers that have left, beyond one for each that is there, at which the heap is rebuilt."""


class Competitor(Protocol):
    """A consumer of the queue."""

    id: int
    name: str
    priority: int
    on_active: Callable[[Sequence[int]], None]
    """Takes the partitions from which it gets records: all, or none."""

    def wake(self) -> None:
        """End its wait for records, because the queue is for it now, or no longer."""


class Contested(Protocol):
    """The queue."""

    @property
    def consumers(self) -> Mapping[int, Competitor]:
        """Consumers by id; a later one has a greater id."""

    @property
    def partition_queues(self) -> Sequence[PartitionQueue]:
        """The parts of the queue."""

    def is_connected(self, name: str) -> bool:
        """Whether a consumer of this name is here."""


class SingleActive:
    """The choice of one consumer of a queue."""

    def __init__(self, queue: Contested) -> None:
        self.active: Competitor | None = None
        """The consumer that gets records; None: there is no consumer, or a takeover waits."""
        self._queue = queue
        self._by_rank = [(-consumer.priority, id) for id, consumer in queue.consumers.items()]
        """A heap; consumers that have left may still be in it."""
        heapify(self._by_rank)
        self._held_at = 0
        """The partition in which another consumer was found to hold records last."""
        self._watched = 0
        """The number of partitions whose changes are heard of."""
        for consumer in queue.consumers.values():
            consumer.on_active(())
        self.reconsider()

    def joined(self, consumer: Competitor) -> None:
        """Add a consumer; it may be the next to be active."""
        heappush(self._by_rank, (-consumer.priority, consumer.id))
        self.reconsider()

    def reconsider(self) -> None:
        """Choose anew, after consumers have left, or records were settled or returned while a takeover waits."""
        best = self._best()
        if best is self.active:
            self._watch(is_waiting=False)
            return
        before, self.active = self.active, None
        if before is not None:
            before.on_active(())
            before.wake()
        is_waiting = best is not None and self._is_held_from(best)
        self._watch(is_waiting=is_waiting)
        if best is not None and not is_waiting:
            self.active = best
            best.on_active(range(len(self._queue.partition_queues)))
            best.wake()

    def close(self) -> None:
        """Stop choosing: all consumers get records."""
        self.active = None
        self._watch(is_waiting=False)
        for consumer in self._queue.consumers.values():
            consumer.on_active(range(len(self._queue.partition_queues)))

    def _best(self) -> Competitor | None:
        consumers, ranks = self._queue.consumers, self._by_rank
        while ranks and ranks[0][1] not in consumers:
            heappop(ranks)
        if len(ranks) > 2 * len(consumers) + STALE_MIN:
            ranks[:] = [rank for rank in ranks if rank[1] in consumers]
            heapify(ranks)
        return consumers[ranks[0][1]] if ranks else None

    def _watch(self, *, is_waiting: bool) -> None:
        """Hear of every change of the queue as long as a takeover waits."""
        parts = self._queue.partition_queues
        wanted = len(parts) if is_waiting else 0
        if wanted != self._watched:
            self._watched = wanted
            for partition_queue in parts:
                partition_queue.on_change = self.reconsider if is_waiting else None

    def _is_held_from(self, best: Competitor) -> bool:
        """Whether other consumers hold records: also one that has left, until they are returned."""
        parts = self._queue.partition_queues
        for turn in range(len(parts)):
            at = (self._held_at + turn) % len(parts)
            if self._holds_for_others(parts[at], best):
                self._held_at = at
                return True
        return False

    def _holds_for_others(self, part: PartitionQueue, best: Competitor) -> bool:
        subscription = part.subscription
        if subscription.leased_count > subscription.leased_by(best.id):
            return True
        holders = {it.decision.holder.name for it in subscription.decided()} if subscription.decided_count else set()
        holders.discard(best.name)
        return any(is_transactions(holder) or self._queue.is_connected(holder) for holder in holders)
