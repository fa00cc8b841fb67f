"""The latest timestamp of each batch of a run, with a search for the first one from a given time on.

Timestamps are the producers' own and need not ascend, and batches are dropped from the front: a running maximum would
still include dropped ones. So the maximum of each 64 batches is kept, of each 64 of these, and so on, and only those
after the start of the search are looked at.

Laws: a search looks at no more than 128 numbers on each level, an append costs O(1) amortised.
"""

from __future__ import annotations

from array import array

_BLOCK = 64
"""Numbers summed up by one of the next level."""


class LatestTimes:
    """One timestamp per batch, in order."""

    __slots__ = ("_levels", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._levels = [self._times]
        """The times, and on each further level the maxima of the whole blocks of the level before."""

    def append(self, time_ms: int) -> None:
        """Append the time of one batch."""
        times = self._times
        times.append(time_ms)
        if not len(times) % _BLOCK:
            self._complete_block()

    def _complete_block(self) -> None:
        """Add the maximum of the last block, now complete, perhaps on several levels."""
        levels = self._levels
        for level, times in enumerate(levels):
            if len(times) % _BLOCK:
                return
            if level + 1 == len(levels):
                levels.append(array("q"))
            levels[level + 1].append(max(times[-_BLOCK:]))

    def first_from(self, place: int, time_ms: int) -> int | None:
        """The first batch at or after `place` whose time is `time_ms` or later."""
        levels, level = self._levels, 0
        while True:
            times = levels[level]
            if place == len(times):
                if not level:
                    return None
                level, place = level - 1, place * _BLOCK  # What is not a whole block stands below only.
            elif times[place] < time_ms:
                place += 1
                if not place % _BLOCK and level + 1 < len(levels):
                    level, place = level + 1, place // _BLOCK
            elif level:
                level, place = level - 1, place * _BLOCK
            else:
                return place

    def forget(self, count: int) -> None:
        """Drop so many from the front: the others are counted from 0 again. Linear in the number left."""
        del self._times[:count]
        del self._levels[1:]
        for level in self._levels:
            whole = len(level) // _BLOCK
            if whole:
                self._levels.append(array("q", [max(level[_BLOCK * n : _BLOCK * n + _BLOCK]) for n in range(whole)]))

    def cut(self, count: int) -> None:
        """Keep so many at the front."""
        for times in self._levels:
            del times[count:]
            count //= _BLOCK
