"""The segments of one log, oldest first. The last one is active: it grows.

Law: few sealed segments stay open for readers; the one that was used longest ago is shut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from linn.storage_engines.segmented_log.segment import Segment

_OPEN_MAX = 8
"""Limit of the sealed segments per log that stay open for readers: few readers are far behind."""


class Segments:
    """A list of segments in which each begins where the one before it ends."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._all = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self._open: OrderedDict[Segment, None] = OrderedDict()

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._all[0]

    @property
    def finished(self) -> list[Segment]:
        """All segments but the active one."""
        return self._all[:-1]

    def holding(self, offset: int) -> Segment:
        """The segment with an offset, which is not before the first one."""
        return self._all[bisect_right(self._bases, offset) - 1]

    def number_before(self, offset: int) -> int:
        """The number of segments that lie wholly before an offset, without the active one."""
        return bisect_right(self._bases, offset) - 1

    def add(self, segment: Segment) -> None:
        """Add a new active segment."""
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def drop_first(self, count: int) -> list[Segment]:
        """Remove the oldest segments; returns them."""
        dropped = self._all[:count]
        del self._all[:count], self._bases[:count]
        for segment in dropped:
            self._open.pop(segment, None)
        return dropped

    def replace(self, segment: Segment, other: Segment) -> bool:
        """Put another segment in the place of one, file and all; False: that one was dropped. Raises StorageError."""
        if segment not in self._all:
            other.discard()
            return False
        other.take_place_of(segment)
        self._all[self._all.index(segment)] = other
        self._open.pop(segment, None)
        return True

    def unsealed_before(self, active: Segment) -> list[Segment]:
        """The unsealed segments before `active`, oldest first; they directly precede it."""
        place = self.number_before(active.base_offset)
        first = place
        while first and not self._all[first - 1].is_sealed:
            first -= 1
        return self._all[first:place]

    def touch(self, segment: Segment) -> None:
        """Record a reader's use of a segment; the least recently used sealed segment is shut."""
        if segment is self.active or segment.retired:
            return
        self._open[segment] = None
        self._open.move_to_end(segment)
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)[0].unload()

    def shut(self) -> None:
        """Shut all segments."""
        for segment in self._all:
            segment.shut()
        self._open.clear()

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._all

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
