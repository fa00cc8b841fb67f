"""Producers of one partition: recognises repeated batches and batches out of order.

An idempotent producer numbers its batches: (producer id, epoch, sequence of the first record). The partition remembers,
for each producer, its epoch and its last WINDOW batches; a client has no more in flight (after KIP-98).

Laws:
- The state is a function of the log: `stored` changes it, called for each batch in the order of the log, so that
  recovery rebuilds it. It is never ahead of the log: a batch is recorded after it was appended. Of records that a
  replica never had, because its leader had dropped them, the leader tells the producers (`before`).
- A producer whose partition is known sends a contiguous sequence: a gap is refused. Where the broker chooses the
  partition, its batches are SCATTERED: each partition sees sequences with gaps, and an unseen sequence is new.
- A batch of an earlier epoch is refused, so a late batch can't follow the one that replaced it.
- Only idle producers are forgotten. A client does not send a batch again after that time. Idle time counts in this
  process, by the monotonic clock: a wall clock that is set forward or back changes nothing.
- Ids below zero are the brokers' own, of transfers from other logs (`linn.core.queue.transfer`), and no client's. They
  are not counted, and are kept longer: a step may be published again by a broker that was away for days.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from linn.core.batch.batch import CONTROL, SCATTERED, RecordBatch
from linn.core.errors.texts import counted
from linn.core.errors.tree import ProducerDuplicate, ProducerFenced, ProducerOutOfOrder

WINDOW = 8
"""Batches remembered for each producer: as many as a client may have in flight."""
IDLE_S = 24 * 3_600
"""Time after its last batch when a producer is forgotten."""
CROWDED_IDLE_S = 600
"""The same when there are many producers: longer than clients retry a batch by default."""
INTERNAL_IDLE_S = 30 * 24 * 3_600
"""The same of a broker's own producer: a broker may be away for days between a step and its settlement. Each start that
moves records has a new producer, so they can't be kept for ever.
"""
SEQUENCE_END = 1 << 32
"""Limit of the sequences of one epoch."""
OFFSET_UNKNOWN = -1
"""Stands for the unknown offset of a batch of which no record was stored."""

_ENTRY = struct.Struct("<qQHH")
_COUNT = struct.Struct("<I")


class Numbered(NamedTuple):
    """The numbers of an idempotent producer's batch."""

    producer_id: int
    epoch: int
    first: int
    end: int
    """The sequence of the next batch in a contiguous lane."""
    scattered: bool


def numbers_of(batch: RecordBatch) -> Numbered:
    """The numbers of a batch with a producer id."""
    first = batch.first_sequence
    return Numbered(
        batch.producer_id, batch.producer_epoch, first, first + batch.count, bool(batch.attributes & SCATTERED)
    )


def is_internal(producer_id: int) -> bool:
    """Whether a producer is a broker's own: it moves records from another log."""
    return producer_id < 0


class _Producer:
    """One producer's epoch, the sequence after its last batch, and the places of its last batches."""

    __slots__ = ("end", "epoch", "last_s", "window")

    def __init__(self, epoch: int, end: int, last_s: float, window: array[int]) -> None:
        self.epoch = epoch
        self.end = end
        self.last_s = last_s
        """The monotonic time of its last batch; infinite if that was before this process."""
        self.window = window
        """The first sequence, base offset and number of offsets of each remembered batch, oldest first."""

    def place_of(self, first: int) -> tuple[int, int] | None:
        """The offset of the remembered batch that begins with a sequence, and the number of its offsets."""
        window = self.window
        for at in range(len(window) - 3, -1, -3):
            if window[at] == first:
                return window[at + 1], window[at + 2]
        return None

    def is_forgotten(self, first: int) -> bool:
        """Whether a batch is older than the remembered ones, so that it is unknown whether it was stored."""
        window = self.window
        return len(window) == 3 * WINDOW and first < min(window[::3])

    def remember(self, first: int, offset: int, span: int) -> None:
        window = self.window
        window.append(first)
        window.append(offset)
        window.append(span)
        if len(window) > 3 * WINDOW:
            del window[:3]


class Producers:
    """The producers of one partition. `len` is the number of clients' producers."""

    __slots__ = ("_internal", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        """Clients' producers by id, longest idle first."""
        self._internal: dict[int, _Producer] = {}
        """The brokers' own, in the same order."""

    @classmethod
    def of(cls, batches: Iterable[RecordBatch]) -> Producers:
        """Collect the producers of a log that consists of these batches."""
        found = cls()
        for batch in batches:
            found.note(batch)
        return found

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._like(producer_id)

    def _like(self, producer_id: int) -> dict[int, _Producer]:
        """The table of a producer's kind."""
        return self._producers if producer_id >= 0 else self._internal

    def _every(self) -> list[tuple[int, _Producer]]:
        return [*self._producers.items(), *self._internal.items()]

    def check(self, batch: Numbered, span: int | None = None) -> int | None:
        """Look up a batch: None if it is new, otherwise the offset where it is stored.

        `span` is the number of its records that would be stored now; None: not compared with the stored number.

        Raises:
            ProducerFenced: its epoch has been replaced.
            ProducerOutOfOrder: the batch before it was not stored here.
            ProducerDuplicate: it is older than the remembered batches, or a different part of it was stored than would
                be now.
        """
        producer = self._like(batch.producer_id).get(batch.producer_id)
        if producer is None or batch.epoch > producer.epoch:
            if batch.first and not batch.scattered:
                raise ProducerOutOfOrder(f"sequence {batch.first} of {_named(batch)} can't be the first one here")
            return None
        if batch.epoch < producer.epoch:
            raise ProducerFenced(f"{_named(batch)} was replaced by epoch {producer.epoch}")
        if batch.first >= producer.end:
            if batch.first > producer.end and not batch.scattered:
                raise ProducerOutOfOrder(f"{_named(batch)} sent sequence {batch.first} where {producer.end} is next")
            return None
        place = producer.place_of(batch.first)
        if place is None:
            if not batch.scattered or producer.is_forgotten(batch.first):
                raise ProducerDuplicate(f"sequence {batch.first} of {_named(batch)} was stored long ago")
            return None
        offset, stored = place
        if span is not None and span != stored:
            raise ProducerDuplicate(
                f"sequence {batch.first} of {_named(batch)} was stored with {counted(stored, 'record')}, and would be"
                f" with {span:,} now: the topic's bindings or interceptors have changed meanwhile"
            )
        return offset

    def stored(self, batch: Numbered, offset: int, now_s: float, span: int | None = None) -> None:
        """Record a batch that was appended at an offset; `now_s` is the monotonic time.

        `span`: the number of its records; None: the length of its sequence.
        """
        producers = self._like(batch.producer_id)
        producer = producers.pop(batch.producer_id, None)
        if producer is None or batch.epoch > producer.epoch:
            producer = _Producer(batch.epoch, 0, now_s, array("q"))
        producers[batch.producer_id] = producer  # Now the least idle one.
        producer.last_s = now_s
        producer.end = max(producer.end, batch.end)
        producer.remember(batch.first, offset, batch.end - batch.first if span is None else span)

    def note(self, batch: RecordBatch) -> None:
        """Record a stamped batch of the log, if it has a producer; for an engine that opens its log again."""
        if batch.producer_id and not batch.attributes & CONTROL:
            self.stored(numbers_of(batch), batch.base_offset, math.inf)

    def passed_over(self, batch: Numbered, now_s: float) -> None:
        """Record a batch of which no record had to be stored. It is not in the log: after a restart the next batch is
        refused because of the gap, and its producer begins a new epoch.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None or batch.epoch > producer.epoch:
            self._producers[batch.producer_id] = _Producer(batch.epoch, batch.end, now_s, array("q"))
        elif producer.epoch == batch.epoch:
            producer.end = max(producer.end, batch.end)

    def opened(self, now_s: float) -> None:
        """Start counting the idle time of recovered producers."""
        for _, producer in self._every():
            producer.last_s = min(producer.last_s, now_s)

    def expire(self, before_s: float, internal_before_s: float = -math.inf) -> None:
        """Forget clients' producers whose last batch is older than `before_s`, and brokers' own by the other time."""
        for producers, end_s in ((self._producers, before_s), (self._internal, internal_before_s)):
            while producers:
                oldest = next(iter(producers))
                if producers[oldest].last_s >= end_s:
                    break
                del producers[oldest]

    def extend(self, later: Producers) -> None:
        """Add the producers of the following part of the log."""
        for producer_id, producer in later._every():
            producers = self._like(producer_id)
            known = producers.pop(producer_id, None)
            window, end = producer.window, producer.end
            if known is not None and known.epoch == producer.epoch:
                window = (known.window + window)[-3 * WINDOW :]
                end = max(known.end, producer.end)
            producers[producer_id] = _Producer(producer.epoch, end, producer.last_s, window[:])

    def before(self, offset: int) -> Producers:
        """The producers as they were when the log ended at an offset, as far as they are remembered."""
        found = Producers()
        for producer_id, producer in self._every():
            window = producer.window
            count = next((at for at in range(0, len(window), 3) if window[at + 1] >= offset), len(window))
            # The first later batch of a contiguous lane begins where the earlier ones end.
            end = window[count] if count < len(window) else producer.end
            if count or not window:
                found._like(producer_id)[producer_id] = _Producer(producer.epoch, end, math.inf, window[:count])
        return found

    # --- snapshots ---

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        every = self._every()
        parts = [_COUNT.pack(len(every))]
        for producer_id, producer in every:
            window = producer.window
            parts.append(_ENTRY.pack(producer_id, producer.end, producer.epoch, len(window)))
            parts.append(struct.pack(f"<{len(window)}q", *window))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Producers:
        """Decode a snapshot. Raises ValueError."""
        found = cls()
        try:
            (count,) = _COUNT.unpack_from(data)
            at = _COUNT.size
            for _ in range(count):
                producer_id, end, epoch, numbers = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size
                window = array("q", struct.unpack_from(f"<{numbers}q", data, at))
                at += 8 * numbers
                found._like(producer_id)[producer_id] = _Producer(epoch, end, math.inf, window)
        except struct.error as error:
            raise ValueError(f"the snapshot of producers is cut short: {error}") from error
        if at != len(data):
            raise ValueError("the snapshot of producers has another length than it says")
        return found


def _named(batch: Numbered) -> str:
    return f"epoch {batch.epoch} of producer {batch.producer_id}"
