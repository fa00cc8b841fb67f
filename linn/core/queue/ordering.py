"""A dispatch order at work on one partition: the index of its ready records, and the classes of those in flight.

Laws: `RecordStates` has the truth about each record, and the order is an index over it: the records that it takes are
checked, and skipped if they are no longer ready. Each offset below `indexed` that is ready is in the index, and each
that is neither ready nor settled is in flight, with its class. So a record that comes back costs no read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import BatchError, PluginError
from linn.core.loop.memory_budget import IndexedShare
from linn.core.queue.dispatch_order import INDEX_RECORD_BYTES, DispatchOrder
from linn.core.queue.event import LOST
from linn.core.queue.lease import LEASE_RANGES_MAX
from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import Range
from linn.core.queue.offset_rows import ranges_of
from linn.core.queue.record_states import RecordStates
from linn.core.queue.redelivery import lease_max

TRIES_MAX = 16
"""Times that an order is asked again at once because it took records that are no longer ready."""
SHORT_WINDOW = 1_024
"""Records that an index may have in any case, so that its queue is delivered: 20 KiB."""
STALE_MIN = 65_536
"""Records in the index that are no longer ready, at which it is built anew if they are most of it."""


class Ordering:
    """The order of one partition's records, with the bookkeeping that every order needs."""

    def __init__(self, order: DispatchOrder, window: int, start: int, memory: IndexedShare | None = None) -> None:
        """Begin with an empty index. `window`: the most records in it; `start`: the first offset to index; `memory`:
        the share that counts it.
        """
        self.order = order
        self._window = window
        self._memory = memory
        self.indexed = start
        """The offset below which the index knows all records."""
        self.is_built = False
        """Whether the index has all records that were there when it was made: nothing is delivered before."""
        self.has_more = False
        """Whether the order has stopped searching without a result, and shall be asked again."""
        self.waiting = 0
        """Records in the index, including records that are no longer ready."""
        self._stale = 0
        self._ask = LEASE_RANGES_MAX
        """Records to ask for: few while neighbours in the order differ in their attempts, and go back."""
        self._taken: OffsetMap[int] = OffsetMap()
        """The classes of records in flight."""

    @property
    def is_stale(self) -> bool:
        """Whether most of the index is of records that are no longer ready."""
        return self._stale > max(STALE_MIN, self.waiting // 2)

    @property
    def window(self) -> int:
        """The most records in the index: few while all indexes together have more memory than they may."""
        is_short = self._memory is not None and self._memory.is_over
        return min(self._window, SHORT_WINDOW) if is_short else self._window

    @property
    def has_room(self) -> bool:
        """Whether more records may be indexed."""
        return self.waiting < self.window

    def classes_of(self, batch: RecordBatch) -> Sequence[int]:
        """The classes of a batch's records. Raises PluginError: the order gives too many or too few."""
        try:
            classes = self.order.classify(batch)
        except BatchError:
            return bytes(batch.count)  # Its records are found to be unreadable when they are delivered.
        if len(classes) != batch.count:
            raise PluginError(f"an order gave {len(classes)} classes to {batch.count} records")
        return classes

    def index(self, states: RecordStates, offsets: Sequence[int], classes: Sequence[int], end: int) -> None:
        """Index consecutive records of one batch, up to the offset `end`; they must follow `indexed`."""
        first, self.indexed = max(self.indexed, states.low), max(self.indexed, end)
        if first >= end or not offsets:
            return
        is_new = states.cursor <= first
        states.advance(end)
        if is_new and offsets[0] >= first:
            self._add(offsets, classes)
            return
        ready = [(start, stop) for start, stop, _ in states.returned.ready.pieces(first, end)]
        self._add(*_within(ready, offsets, classes))
        in_flight = _between(states.settled.gaps(first, end), ready)
        held, held_classes = _within(in_flight, offsets, classes)
        if held:
            self.order.hold(held, held_classes)
            self._take(held, held_classes)

    def _add(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        if offsets:
            self.order.add(offsets, classes)
            self._count(len(offsets))

    def _count(self, change: int) -> None:
        self.waiting += change
        if self._memory is not None:
            self._memory.add(INDEX_RECORD_BYTES * change)

    def close(self) -> None:
        """Give back the memory, as far as it is counted: the index is dropped."""
        if self._memory is not None:
            self._memory.add(-INDEX_RECORD_BYTES * self.waiting)
            self._memory = None

    def _take(self, offsets: Sequence[int], classes: Sequence[int]) -> None:
        """Note the classes of records in flight, which are in ascending order."""
        if len(set(classes)) == 1:
            self._taken.set_rows([(first, end, classes[0]) for first, end in ranges_of(offsets)])
        else:
            self._taken.set_rows([(at, at + 1, one) for at, one in zip(offsets, classes, strict=True)])

    def take(self, states: RecordStates, records_max: int, lost_max: int) -> tuple[list[Range], int] | None:
        """Take the next records with equal attempts out of the ready ones; (ranges, attempts), or None if there is
        none.

        Records that came back by a loss are limited by `lost_max` as in `lease_max`; if it is 0, nothing is taken where
        one of them is the next.
        """
        for _ in range(TRIES_MAX):
            taken = self.order.take(min(records_max, self._ask))
            self._ask = min(2 * self._ask, LEASE_RANGES_MAX)
            self.has_more = taken.has_more
            by_offset = dict(zip(taken.offsets, taken.classes, strict=True))
            if not by_offset:
                return None
            self._count(-len(by_offset))
            offsets = sorted(by_offset)
            firsts, ends = zip(*ranges_of(offsets), strict=True)
            pieces = states.returned.ready.pieces_within(firsts, ends)
            if sum([end - first for first, end, _ in pieces]) == len(offsets):
                attempts = pieces[0][2]
                if attempts & LOST or any(piece[2] != attempts for piece in pieces):
                    offsets, attempts = self._first_equal(taken.offsets, by_offset, pieces, lost_max)
                    if not offsets:
                        return None
                rows = ranges_of(offsets)
                states.returned.ready.take_rows(*zip(*rows, strict=True))
                self._take(offsets, [by_offset[offset] for offset in offsets])
                return rows, attempts
            self._drop_gone(by_offset, pieces)
        self.has_more = True
        return None

    def _drop_gone(self, by_offset: dict[int, int], pieces: Sequence[tuple[int, int, int]]) -> None:
        """Release a take with records that are not ready any more, and put the ready ones back.

        Without the others, the order may choose differently.
        """
        ready = [offset for first, end, _ in pieces for offset in range(first, end)]
        self._stale = max(0, self._stale - (len(by_offset) - len(ready)))
        offsets = sorted(by_offset)
        self.order.release(offsets, [by_offset[offset] for offset in offsets])
        self._add(ready, [by_offset[offset] for offset in ready])

    def _first_equal(
        self,
        wanted: Sequence[int],
        by_offset: dict[int, int],
        pieces: Sequence[tuple[int, int, int]],
        lost_max: int,
    ) -> tuple[list[int], int]:
        """The first records of `wanted` with equal attempts, ascending, and the attempts; as many as `lease_max` says.
        The others go back.
        """
        attempts_of = {offset: attempts for first, end, attempts in pieces for offset in range(first, end)}
        wanted = list(dict.fromkeys(wanted))
        attempts = attempts_of[wanted[0]]
        count = next((at for at, offset in enumerate(wanted) if attempts_of[offset] != attempts), len(wanted))
        count = lease_max(attempts, count, lost_max)
        others = sorted(wanted[count:])
        if others:
            classes = [by_offset[offset] for offset in others]
            self.order.release(others, classes)
            self._add(others, classes)
        self._ask = count + 1
        return sorted(wanted[:count]), attempts

    def came_back(self, ranges: Sequence[Range]) -> None:
        """Put records that were in flight and are ready again into their places."""
        offsets, classes = self._release(ranges)
        if offsets:
            self.order.release(offsets, classes)
            self._add(offsets, classes)

    def settled(self, ranges: Sequence[Range]) -> None:
        """Release records that are settled, whatever their state was."""
        offsets, classes = self._release(ranges)
        if offsets:
            self.order.release(offsets, classes)

    def left(self, ranges: Iterable[Range]) -> None:
        """Note that ready records are not ready any more although the order did not take them."""
        self._stale += sum([max(0, min(end, self.indexed) - first) for first, end in ranges])

    def _release(self, ranges: Sequence[Range]) -> tuple[list[int], list[int]]:
        """Take the records in flight out of ascending ranges; returns their offsets and classes."""
        if not ranges or not self._taken.count:
            return [], []
        if len(ranges) == 1:
            pieces = self._taken.take(*ranges[0])
        else:
            firsts, ends = zip(*ranges, strict=True)
            pieces = self._taken.pieces_within(firsts, ends)
            self._taken.take_rows(firsts, ends)
        offsets = list(chain.from_iterable([range(first, end) for first, end, _ in pieces]))
        classes = list(chain.from_iterable([repeat(one, end - first) for first, end, one in pieces]))
        return offsets, classes


def _within(
    ranges: Sequence[Range], offsets: Sequence[int], classes: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """The ascending offsets that lie in ascending ranges, with their classes."""
    if len(ranges) == 1 and offsets and ranges[0][0] <= offsets[0] and offsets[-1] < ranges[0][1]:
        return offsets, classes
    found: list[tuple[int, int]] = []
    at = 0
    for offset, one in zip(offsets, classes, strict=True):
        while at < len(ranges) and ranges[at][1] <= offset:
            at += 1
        if at < len(ranges) and ranges[at][0] <= offset:
            found.append((offset, one))
    return [offset for offset, _ in found], [one for _, one in found]


def _between(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The parts of ascending ranges that lie in none of the others, which lie within them."""
    left: list[Range] = []
    at = 0
    for first, end in ranges:
        while at < len(others) and others[at][0] < end:
            if first < others[at][0]:
                left.append((first, others[at][0]))
            first = others[at][1]
            at += 1
        if first < end:
            left.append((first, end))
    return left
