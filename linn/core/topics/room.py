"""The room that a topic's limits leave, and the records that `overflow` drops or makes dead letters to make more.

Laws: a queue's records end through its state machine, the lowest that wait for delivery first, and never one that a
consumer has. Only the leader of a partition ends its records. A batch is let in or refused as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from linn.core.config.topic_settings import TopicSettings
from linn.core.env.env import Spawn
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import TopicFull
from linn.core.log.partition import Partition
from linn.core.loop.waiting import ReadySignal
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue

SURPLUS_SHARE = 16
"""Fraction of a limit, as 1/n, of which more is ended at once, so that not each batch has to make room."""
_MAKES_ROOM = ("drop-head", "dead-letter")


class Held(NamedTuple):
    """The bytes and records that count against a topic's limits."""

    bytes: int
    records: int


class Limited(Protocol):
    """The topic, as far as its limits are concerned."""

    name: str
    settings: TopicSettings
    partitions: dict[int, Partition]

    @property
    def queue(self) -> Queue | None: ...
    def follow_start(self, indexes: Sequence[int]) -> None: ...


class Room:
    """The limits of one topic at work."""

    def __init__(self, topic: Limited, spawn: Spawn) -> None:
        self.changed: dict[int, None] = {}
        """Partitions that may hold more or less than when they were last asked."""
        self.is_over = False
        """Whether a batch was let in over a limit; `make` is to be called once it is stored."""
        self.dropped_records = 0
        """Records that `overflow = "drop-head"` dropped; of a queue only unsettled ones."""
        self.dead_records = 0
        """Records that `overflow = "dead-letter"` made dead letters."""
        self._topic = topic
        self._spawn = spawn
        self._signal = ReadySignal()
        self._known: dict[int, Held] = {}
        self._held = Held(0, 0)
        self._is_making = False

    # --- asking ---

    def takes(self, size: int, count: int) -> bool:
        """Whether `count` records of `size` bytes may be appended now; False: `wait`, and ask again.

        An empty topic takes a batch that is over a limit by itself.

        Raises TopicFull if the topic rejects batches for which it has no room.
        """
        settings = self._topic.settings
        bytes_max, records_max = settings.bytes_max, settings.records_max
        if bytes_max is None and records_max is None:
            return True
        held = self.held()
        is_large = bytes_max is not None and held.bytes + size > bytes_max
        is_many = records_max is not None and held.records + count > records_max
        if settings.overflow in _MAKES_ROOM:
            self.is_over = self.is_over or is_large or is_many
            return True
        if not (is_large and held.bytes) and not (is_many and held.records):
            return True
        if settings.overflow == "reject":
            raise self._full(held, is_large=is_large)
        return False

    def _full(self, held: Held, *, is_large: bool) -> TopicFull:
        settings = self._topic.settings
        if is_large:
            text = f"holds {held.bytes:,} bytes, and its bytes_max is {settings.bytes_max:,}"
        else:
            text = f"holds {held.records:,} unsettled records, and its records_max is {settings.records_max:,}"
        return TopicFull(f"topic {self._topic.name} is full: it {text}")

    async def wait(self) -> None:
        """Wait until something was settled, trimmed or changed."""
        await self._signal.wait()

    def freed(self, index: int) -> None:
        """Note that records of a partition were settled or trimmed."""
        self.changed[index] = None
        self._signal.notify_all()

    def tell(self) -> None:
        """Wake all publishes that wait for room."""
        self._signal.notify_all()

    def held(self) -> Held:
        """The sum of `held_in` over all partitions; a marker of a transaction counts from the next change on.

        Only changed partitions are asked.
        """
        for index in self.changed:
            now, before = self.held_in(index), self._known.get(index, Held(0, 0))
            size, count = self._held
            self._held = Held(size + now.bytes - before.bytes, count + now.records - before.records)
            self._known[index] = now
        self.changed.clear()
        return self._held

    def held_in(self, index: int) -> Held:
        """The contents of a partition that count: all of a stream, and of a queue the unsettled records.

        Records are taken to be as large as others on average. Where publishers wait or are refused, settled records
        behind the first unsettled one count as bytes, because they are on the disk. Where records make room for others,
        dead letters that wait to be copied do not count: they have made room.
        """
        topic = self._topic
        partition = topic.partitions[index]
        log = partition.log
        size, (start, end) = log.size_bytes(), log.bounds()
        queue = topic.queue if topic.settings.kind == "queue" else None
        if queue is None or end == start:
            return Held(size, end - start)
        subscription = queue.partition_queues[index].subscription
        unsettled = subscription.unsettled_count(end)
        if topic.settings.overflow in _MAKES_ROOM:
            stored = max(unsettled, end - start - partition.transactions.hidden.count(start, end))
            waiting = unsettled - subscription.dead_count
            return Held(size * waiting // stored if stored else 0, waiting)
        return Held(size * (end - max(start, subscription.settled_before())) // (end - start), unsettled)

    # --- making room ---

    def make(self) -> None:
        """Make room in the background, if a batch was let in over a limit."""
        if self.is_over and not self._is_making:
            self._is_making = True
            self._spawn(self._make)

    def limits_changed(self) -> None:
        """Apply new limits: to publishes that wait, and to the records that are there."""
        self.tell()
        if self._topic.settings.overflow in _MAKES_ROOM:
            self.is_over = True
            self.make()

    async def _make(self) -> None:
        try:
            while self.is_over:
                self.is_over = False
                await self._end_surplus()
        finally:
            self._is_making = False

    async def _end_surplus(self) -> None:
        topic = self._topic
        for index in self._surplus():
            if (partition := topic.partitions.get(index)) is not None and partition.leads:
                # Only committed records are ended, and only for committed ones, which no crash takes back.
                try:
                    await partition.committed.wait(partition.log.bounds()[1])
                except NotLeader:
                    return
        for index, records in self._surplus().items():
            partition, queue = topic.partitions.get(index), topic.queue
            if partition is None or not partition.leads:
                return  # Its log follows another leader's, which decides.
            if topic.settings.kind != "queue":
                await self._drop_oldest(partition, records)
            elif queue is not None:
                await self._end_waiting(queue.partition_queues[index], records)
            topic.follow_start([index])

    async def _end_waiting(self, partition_queue: PartitionQueue, records: int) -> None:
        """End records of a queue that wait for delivery, which may be fewer."""
        is_dead = self._topic.settings.overflow == "dead-letter"
        ended = partition_queue.end_waiting(records, is_dead=is_dead)
        if is_dead:
            self.dead_records += ended
        else:
            self.dropped_records += ended
        await partition_queue.trimming.trim_now()

    async def _drop_oldest(self, partition: Partition, records: int) -> None:
        start = partition.start_offset
        before = min(start + records, partition.high_watermark)
        self.dropped_records += partition.readable_count(start, before)
        await partition.log.trim(before=before)

    def _surplus(self) -> dict[int, int]:
        """The number of records to end, by partition, so that the topic is a little below its limits."""
        settings, found = self._topic.settings, dict[int, int]()
        if not self._topic.partitions:
            return found  # Another broker leads it by now.
        total = self.held()
        held = {index: self._known[index] for index in self._topic.partitions}
        if settings.records_max is not None and total.records > settings.records_max:
            surplus = surplus_of([each.records for each in held.values()], settings.records_max)
            found.update(zip(held, surplus, strict=True))
        if settings.bytes_max is not None and total.bytes > settings.bytes_max:
            surplus = surplus_of([each.bytes for each in held.values()], settings.bytes_max)
            for (index, each), size in zip(held.items(), surplus, strict=True):
                if size:
                    found[index] = max(found.get(index, 0), -(-size * each.records // each.bytes))
        return {index: records for index, records in found.items() if records}


def surplus_of(held: Sequence[int], limit: int) -> list[int]:
    """The part of each number to take away, so that their sum is a little below a limit: from the largest first, until
    they are equal."""
    left, kept = limit - limit // SURPLUS_SHARE, [0] * len(held)
    for place, index in enumerate(sorted(range(len(held)), key=held.__getitem__)):
        kept[index] = min(held[index], left // (len(held) - place))
        left -= kept[index]
    return [number - part for number, part in zip(held, kept, strict=True)]
