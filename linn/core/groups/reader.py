"""Reading partitions in order from given offsets: the base of readers without a group and of group members.

Law: each partition's records are delivered in order, without repeats or gaps, from the given offset; if retention has
dropped that offset, reading continues at the new start. A batch that can't be decoded is delivered whole, whatever
range was asked for; it does not block later batches.

A reader with a selection gets only the selected records. Its batches also cover the offsets between them, so that they
follow one another without gaps; after a stretch without selected records, it is told its progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.format import NATIVE_ONLY
from linn.core.batch.steps import Steps, run_steps
from linn.core.delivery.consumer import do_nothing
from linn.core.delivery.delivery import NOTHING, Delivery
from linn.core.delivery.settlement import Settlement, SettleOutcome
from linn.core.delivery.vocabulary import ConsumerKind
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import (
    BatchMalformed,
    LinnError,
    OffsetOutOfRange,
    PartitionUnknown,
    SubscriptionWrongKind,
    TopicUnknown,
)
from linn.core.log.partition import Partition
from linn.core.log.selection import Selection
from linn.core.log.storage import StoredBatch
from linn.core.loop.waiting import WaitDeadline

logger = logging.getLogger("linn.stream")

TOLD_INTERVAL_S = 1.0
"""Interval at which a reader is told its progress past skipped records; records skipped since then are examined again
if it is lost."""
ENTERED_AT_ONCE_MAX = 128
"""Number of partitions with which a reader is registered in one step, which takes a quarter of a millisecond."""


class StreamReader:
    """A reader without stored offsets; a `delivery.Reader`."""

    kind: Literal[ConsumerKind.READER] = ConsumerKind.READER
    name = ""
    lease_ms = 0
    wants = False

    def __init__(
        self, topic: str, partitions: Mapping[int, Partition], on_close: Callable[[StreamReader], None] = lambda _: None
    ) -> None:
        """Start with all partitions known and none of them read yet: see `read_from`."""
        self.topic = topic
        self.partitions = partitions
        self._places: dict[int, int] = {}
        self._paused: dict[int, int] = {}
        """The next offset of paused partitions."""
        self.selection: Selection | None = None
        """The records to deliver; None: all."""
        self.on_passed: Callable[[int, int, int], None] | None = None
        """Called with (partition, first, end) of skipped records, instead of telling the reader."""
        self._told: dict[int, tuple[int, float]] = {}
        """By partition, the offset of the progress known to the reader, and when it was told; only with a selection."""
        self._listeners: dict[int, Callable[[], None]] = {}
        self._entering: dict[int, None] = {}
        """Partitions with which the reader is not registered yet; its offsets in them hold from the start."""
        self._ready: dict[int, None] = {}
        """Partitions that may have records to read, in turn: a step tries one of a thousand."""
        self._wakeup: trio.Event | None = None
        self.ended = False
        self._reason: LinnError | None = None
        """The reason for which it was ended; None: the topic is gone."""
        self.takes_stored = False
        self.accepts: Sequence[int] = NATIVE_ONLY
        self.on_ended: Callable[[], None] = do_nothing
        self.on_released: Callable[[], None] = do_nothing
        self.on_lease_lost: Callable[[int, int], None] = do_nothing
        self.held = 0
        self._on_close = on_close

    def read_from(self, partition: int, offset: int) -> None:
        """Begin or continue reading a partition at `offset`."""
        self.read_all_from({partition: offset})

    def read_all_from(self, places: Mapping[int, int]) -> None:
        """Begin or continue reading partitions at these offsets. For thousands of partitions, `next` does most of the
        work.

        Paused partitions only change their offset.
        """
        if self._paused:
            self._paused.update({partition: at for partition, at in places.items() if partition in self._paused})
            places = {partition: at for partition, at in places.items() if partition not in self._paused}
        self._places.update(places)
        for partition in places:
            self._told.pop(partition, None)
        for partition in places:
            to_do = self._ready if partition in self._listeners else self._entering
            to_do[partition] = None
        self._wake()

    def stop_reading(self, partition: int) -> None:
        """Stop reading a partition."""
        self._paused.pop(partition, None)
        if self._places.pop(partition, None) is not None:
            self._told.pop(partition, None)
            self._entering.pop(partition, None)
            self._ready.pop(partition, None)
            listener = self._listeners.pop(partition, None)
            if listener is not None:
                self.partitions[partition].watchers.remove(listener)

    def seek(self, partition: int, offset: int | None, *, is_paused: bool) -> None:
        """Continue at `offset`, or pause there until the next call. None: the present offset.

        Raises PartitionUnknown if the reader does not read the partition, OffsetOutOfRange if the offset is beyond the
        end.
        """
        place = self.place(partition)
        if place is None:
            raise PartitionUnknown(f"this consumer does not read partition {partition} of {self.topic}")
        if offset is not None and not 0 <= offset <= self.partitions[partition].high_watermark:
            raise OffsetOutOfRange(f"{offset} is not an offset of {self.partitions[partition].id}")
        self.stop_reading(partition)
        place = place if offset is None else offset
        if is_paused:
            self._paused[partition] = place
        else:
            self.read_from(partition, place)

    def _watch_some_partitions(self) -> None:
        """Register with some partitions for notifications, before their records are read."""
        for number in list(islice(self._entering, ENTERED_AT_ONCE_MAX)):
            del self._entering[number]
            partition = self.partitions[number]
            listener = self._listeners[number] = partial(self._mark, number)
            partition.watchers.add(listener)
            if self._places[number] < partition.stable_offset:
                self._ready[number] = None

    def place(self, partition: int) -> int | None:
        """The next offset of a partition, even if paused; None if it is not read."""
        return self._places.get(partition, self._paused.get(partition))

    def _mark(self, partition: int) -> None:
        self._ready[partition] = None
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()
            self._wakeup = None

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """See `delivery.Consumer.next`."""
        while True:
            if self.ended:
                raise self._reason or TopicUnknown(f"topic {self.topic} is gone")
            if self._entering:
                self._watch_some_partitions()
            if self._ready:
                delivery = await self._read_first(records_max, bytes_max)
                if delivery is not None:
                    return delivery
                if deadline.is_over:
                    return NOTHING
                await trio.lowlevel.checkpoint()  # Skipped records may be in memory.
            elif self._entering:
                await trio.lowlevel.checkpoint()
            else:
                if self._wakeup is None:
                    self._wakeup = trio.Event()
                if not await deadline.wait(self._wakeup.wait) and not self._reason:
                    return NOTHING

    async def _read_first(self, records_max: int, bytes_max: int) -> Delivery | None:
        """Read from the next partition in turn; if it has more, it goes to the end of the queue."""
        number = next(iter(self._ready))
        del self._ready[number]
        try:
            return await self._read(number, records_max, bytes_max)
        finally:
            place = self._places.get(number)
            if place is not None:
                partition = self.partitions[number]
                # Records dropped by retention can't be read: continue at the start.
                if max(place, partition.start_offset) < partition.stable_offset:
                    self._mark(number)

    async def _read(self, number: int, records_max: int, bytes_max: int) -> Delivery | None:
        partition = self.partitions[number]
        place = self._places.get(number)
        if place is None:
            return None
        begin = max(place, partition.start_offset)
        end = min(partition.stable_offset, begin + records_max)
        if begin >= end:
            return None
        if self.selection is not None:
            return await self._select(self.selection, number, place, records_max, bytes_max)
        try:
            batches = await self._batches(partition, begin, end, bytes_max)
        except OffsetOutOfRange:
            if partition.start_offset > begin:
                return None  # Retention moved the start: continue there.
            raise
        if self._places.get(number) != place:
            return None  # The partition was removed, or the reader moved, while the disk was read.
        self._places[number] = batches[-1].end_offset if batches else end
        if not batches or batches[-1].base_offset < begin:
            return None  # A gap, or a batch that can't be cut and of which only a part was wanted.
        partition.count_delivered(batches)
        return Delivery(number, 0, 0, batches)

    async def _select(
        self, selection: Selection, number: int, place: int, records_max: int, bytes_max: int
    ) -> Delivery | None:
        """Read as `_read` does, through the selection."""
        partition = self.partitions[number]
        told, since_s = self._told.setdefault(number, (place, selection.monotonic()))
        begin = max(place, partition.start_offset)
        try:
            batches, end = await selection.read(
                partition, begin, covers_from=told, records_max=records_max, bytes_max=bytes_max
            )
        except OffsetOutOfRange:
            if partition.start_offset > begin:
                return None
            raise
        if self._places.get(number) != place or number not in self._told:
            return None
        self._places[number] = end
        now_s = selection.monotonic()
        if batches:
            told = batches[-1].end_offset
            self._told[number] = told, now_s
        if told < end and self.on_passed is not None:
            self.on_passed(number, told, end)
        if batches:
            partition.count_delivered(batches)
            return Delivery(number, 0, 0, batches)
        if self.on_passed is None and now_s - since_s >= TOLD_INTERVAL_S:
            self._told[number] = end, now_s
            return Delivery(number, 0, 0, (), end)
        return None

    async def _batches(
        self, partition: Partition, begin: int, end: int, bytes_max: int
    ) -> Sequence[RecordBatch | StoredBatch]:
        """Read batches to deliver; the whole batch at `begin` if it can't be decoded and therefore not cut."""
        try:
            if self.takes_stored:
                return await partition.read_stored(begin, end, bytes_max, self.accepts)
            return await partition.read_range(begin, end, bytes_max, self.accepts)
        except BatchMalformed as error:
            malformed = error
        batch = await partition.batch_at(begin)
        if batch.base_offset < begin:
            about = {"partition": str(partition.id), "topic": self.topic, "count": batch.end_offset - begin}
            text = "%(partition)s: %(count)d records can't be read and are passed over: %(error)s"
            logger.error(text, about | log_fields(malformed))
        return [batch]

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """Refuse every settlement: a reader has nothing to settle."""
        yield from ()
        error = SubscriptionWrongKind(f"a reader without a group settles nothing on the stream {self.topic}")
        return SettleOutcome([(index, error) for index, _ in enumerate(settlements)], ())

    def is_holding(self) -> bool:
        """False: a stream has no leases."""
        return False

    def end(self, reason: LinnError) -> None:
        """See `delivery.Consumer.end`."""
        self._reason = reason
        self.close()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        run_steps(self.disconnect())

    def disconnect(self) -> Steps[None]:
        """Stop delivering; the steps unregister the reader from its partitions."""
        if not self.ended:
            self._end()
        return self._leaving()

    def _end(self) -> None:
        self.ended = True
        self._on_close(self)
        self._wake()
        self.on_ended()
        self.on_ended, self.on_passed = do_nothing, None  # The callees refer to this reader.

    def _leaving(self) -> Steps[None]:
        """Unregister from the partitions, which may be thousands, one per step."""
        for partition in list(self._places):
            self.stop_reading(partition)
            yield
