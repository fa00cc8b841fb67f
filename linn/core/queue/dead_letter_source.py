"""The dead records of one partition of a queue, as the source of a transfer, with the labels of their copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from linn.core.batch.record import LabelValue, Record
from linn.core.env.env import Clock
from linn.core.queue.dead_letter import (
    ATTEMPTS,
    ERROR,
    HISTORY,
    OFFSET,
    PARTITION,
    REASON,
    SUBSCRIPTION,
    TIME_MS,
    TOPIC,
    DeadRange,
    Intent,
)
from linn.core.queue.dead_letter_history import deaths_of, is_cycle, label_of, with_death
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.transfer import Numbers, TransferSource


class DeadLetterSource(TransferSource):
    """The dead records of a queue."""

    def __init__(self, queue: PartitionQueue, numbers: Numbers, clock: Clock, routing_key: str | None = None) -> None:
        """`routing_key`: the key of all copies; None: each keeps its own."""
        super().__init__(queue, numbers)
        self._clock = clock
        self._routing_key = routing_key
        self._dead: dict[int, DeadRange] = {}
        """The records of the step, by offset."""

    def waiting(self, records_max: int) -> Sequence[Range]:
        """See `TransferSource.waiting`."""
        left, found = records_max, list[DeadRange]()
        for dead in self._queue.subscription.lowest_dead(records_max):
            if left > 0:
                found.append(replace(dead, end=min(dead.end, dead.first + left)))
                left -= found[-1].end - dead.first
        return self._noted(found)

    def _noted(self, found: Sequence[DeadRange]) -> Sequence[Range]:
        self._dead = {offset: dead for dead in found for offset in range(dead.first, dead.end)}
        return super()._noted(found)

    def intend(self, ranges: Sequence[Range], intent: Intent) -> None:
        """See `TransferSource.intend`."""
        for first, end in ranges:
            self._queue.subscription.intend(first, end, intent)

    def rewritten(self, offset: int, record: Record) -> Record | None:
        """See `TransferSource.rewritten`. A copy has neither the delay nor the TTL of its record."""
        topic, dead, deaths = self.partition.id.topic, self._dead[offset], deaths_of(record.labels.get(HISTORY))
        if is_cycle(deaths, topic, dead.reason):
            return None
        now_ms = self._clock.now_ms()
        deaths = with_death(deaths, topic, dead.reason, now_ms)
        routing_key = record.routing_key if self._routing_key is None else self._routing_key
        labels = self._labels(offset, record, now_ms) | {HISTORY: label_of(deaths)}
        return replace(record, routing_key=routing_key, labels=labels, delay_ms=0, ttl_ms=0)

    def _labels(self, offset: int, record: Record, now_ms: int) -> dict[str, LabelValue]:
        queue, dead, source = self._queue, self._dead[offset], self.partition.id
        cause = queue.subscription.cause_of(offset)
        return {
            **{name: value for name, value in record.labels.items() if name not in (SUBSCRIPTION, ERROR)},
            REASON: dead.reason.label,
            TOPIC: source.topic,
            PARTITION: source.index,
            OFFSET: offset,
            ATTEMPTS: dead.attempts,
            TIME_MS: now_ms,
            **({SUBSCRIPTION: queue.name} if queue.name else {}),
            **({ERROR: cause} if cause else {}),
        }

    def settle(self, ranges: Sequence[Range]) -> None:
        """See `TransferSource.settle`.

        Ranges are settled as one if no record below or between has died meanwhile: settling a range costs as much as
        there are ranges above it.
        """
        queue, end = self._queue, ranges[-1][1]
        lowest = queue.subscription.lowest_dead(sum([stop - first for first, stop in ranges]))
        alone = list(OffsetRanges([(dead.first, min(dead.end, end)) for dead in lowest if dead.first < end]))
        for first, stop in [(ranges[0][0], end)] if alone == list(ranges) else ranges:
            queue.dead_lettered(first, stop)
