"""TimeIndex: offsets of records by the time at which each is due.

Laws: 12 bytes a record, in runs that are sorted by time. Small runs are merged, so that single records cost no more
than batches. A run of which less than half is still wanted is made anew from that half: `thin` examines one run at a
time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge

from linn.core.queue.offset_ranges import OffsetRanges, Range

RUN_RECORDS = 16_384
"""Records of a merged run: it is made in about 10 ms."""
SMALL_RUNS_MAX = 64
"""Small runs at which they are merged."""


class _Run:
    """Records in the order of their times."""

    __slots__ = ("at", "base", "dues_ms", "places")

    def __init__(self, dues_ms: Sequence[int], offsets: Sequence[int]) -> None:
        self.base = min(offsets)
        self.dues_ms = array("q", dues_ms)
        kind = "I" if max(offsets) - self.base < 1 << 32 else "q"
        self.places = array(kind, [offset - self.base for offset in offsets])
        """Offsets minus `base`."""
        self.at = 0
        """The number of records that were taken."""

    @property
    def next_ms(self) -> int:
        return self.dues_ms[self.at]

    @property
    def left(self) -> int:
        return len(self.dues_ms) - self.at

    def each(self) -> Iterator[tuple[int, int]]:
        """(time, offset) of the records that are left."""
        return ((self.dues_ms[at], self.base + self.places[at]) for at in range(self.at, len(self.dues_ms)))

    def offsets(self) -> list[int]:
        """The offsets of the records that are left, in the order of their times."""
        base = self.base
        return [base + place for place in self.places[self.at :]]

    def rows(self) -> list[tuple[int, int]]:
        """(time, offset) of the records that are left."""
        return list(zip(self.dues_ms[self.at :], self.offsets(), strict=True))


class TimeIndex:
    """Records by time. `len` is their number."""

    def __init__(self) -> None:
        self._small: list[_Run] = []
        self._large: deque[_Run] = deque()
        """Runs in the order in which they are thinned."""
        self._heap: list[tuple[int, int, int, _Run]] = []
        """An entry for each run: the time and the offset of its next record, and a number that no other has."""
        self._numbers = 0
        self._count = 0
        self.end = 0
        """The offset after the highest that was added."""

    def __len__(self) -> int:
        return self._count

    def add(self, dues_ms: Sequence[int], offsets: Sequence[int]) -> bool:
        """Add records: wall times in ms, and the offset of each; at least one. Returns whether it is time to `thin`."""
        rows, large = sorted(zip(dues_ms, offsets, strict=True)), len(self._large)
        self.end = max(self.end, max(offsets) + 1)
        self._count += len(rows)
        self._insert(rows)
        if len(self._small) > SMALL_RUNS_MAX:
            self._merge()
        return len(self._large) > large

    def _insert(self, rows: Sequence[tuple[int, int]]) -> None:
        run = _Run([due_ms for due_ms, _ in rows], [offset for _, offset in rows])
        (self._large if 2 * run.left >= RUN_RECORDS else self._small).append(run)
        self._push(run)

    def _push(self, run: _Run) -> None:
        self._numbers += 1
        heappush(self._heap, (run.next_ms, run.base + run.places[run.at], self._numbers, run))

    def _merge(self) -> None:
        small, self._small = self._small, []
        rows = sorted([row for run in small for row in run.rows()])
        gone = set(map(id, small))
        self._heap = [entry for entry in self._heap if id(entry[-1]) not in gone]
        heapify(self._heap)
        for at in range(0, len(rows), RUN_RECORDS):
            self._insert(rows[at : at + RUN_RECORDS])

    def next_due_ms(self) -> int | None:
        """The time of the record that is due first; None: there are no records."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int, records_max: int) -> list[int]:
        """Remove records that are due by `now_ms`, at most so many; returns ascending offsets."""
        taken: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < records_max:
            run = heappop(self._heap)[-1]
            until = bisect_right(run.dues_ms, now_ms, run.at, min(len(run.dues_ms), run.at + records_max - len(taken)))
            base = run.base
            taken += [base + place for place in run.places[run.at : until]]
            run.at = until
            self._replace(run)
        self._count -= len(taken)
        taken.sort()
        return taken

    def in_order(self) -> Iterator[tuple[int, int]]:
        """(time, offset) of all records, in that order. Nothing may change meanwhile."""
        return merge(*[run.each() for run in (*self._small, *self._large)])

    def take_in_order(self, now_ms: int, records_max: int) -> list[tuple[int, int]]:
        """Remove records that are due by `now_ms`, at most so many; returns (time, offset) in that order."""
        taken: list[tuple[int, int]] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(taken) < records_max:
            run = heappop(heap)[-1]
            # Up to the next record of another run, and of equal times only the first.
            before_ms = min(now_ms + 1, heap[0][0]) if heap else now_ms + 1
            stop = min(len(run.dues_ms), run.at + records_max - len(taken))
            until = max(run.at + 1, bisect_left(run.dues_ms, before_ms, run.at, stop))
            base = run.base
            taken += [(run.dues_ms[at], base + run.places[at]) for at in range(run.at, until)]
            run.at = until
            self._replace(run)
        self._count -= len(taken)
        return taken

    def _replace(self, run: _Run) -> None:
        """Put a run that was popped back into the heap, or drop it if nothing is left of it."""
        if run.left:
            self._push(run)
        else:
            (self._small if run in self._small else self._large).remove(run)

    def clear(self) -> None:
        """Remove everything."""
        self.__init__()  # type: ignore[misc]

    def thin(self, wanted: Callable[[int, int], Sequence[Range]]) -> None:
        """Examine the large run that was examined longest ago, and drop its unwanted records if they are most of it.

        `wanted(first, end)`: the parts of that range whose records are still wanted, ascending.
        """
        if not self._large:
            return
        run = self._large[0]
        self._large.rotate(-1)
        offsets = run.offsets()
        ranges = OffsetRanges(list(wanted(min(offsets), max(offsets) + 1)))
        kept = [row for row in run.rows() if row[1] in ranges]
        if 2 * len(kept) >= run.left:
            return
        self._count -= run.left - len(kept)
        self._large.pop()
        self._heap = [entry for entry in self._heap if entry[-1] is not run]
        heapify(self._heap)
        if kept:
            self._insert(kept)
