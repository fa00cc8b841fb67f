"""Damaged records of one partition of a queue: where they are, and whether they can be read again.

Law: they are kept and retried now and then, because a damaged file may be replaced by a whole one.
"""

from __future__ import annotations

import logging

from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import LogCorrupt, OffsetOutOfRange
from linn.core.log.partition import Partition
from linn.core.queue.offset_ranges import OffsetRanges

logger = logging.getLogger("linn.queue")

PROBES_ONE_BY_ONE = 4_096
"""Offsets probed one by one to find the end of damage: half a second."""


def warn_of_lost(partition: Partition) -> None:
    """Warn that a log ends before records that its queue has delivered: a power loss or a person removed them."""
    text = "%(partition)s ends at offset %(offset)d, and records behind that, which its queue had delivered, are lost"
    about = {"partition": str(partition.id), "topic": partition.id.topic, "offset": partition.log.bounds()[1]}
    logger.warning(text, about)


class Damage:
    """The records of one partition that are known to be unreadable."""

    def __init__(self, partition: Partition) -> None:
        self.ranges = OffsetRanges()
        self._partition = partition

    async def check(self, offset: int) -> None:
        """Check that a record is not known to be damaged, or can be read by now. Raises LogCorrupt."""
        known = self._at(offset)
        if known is not None and not await self._is_readable(offset):
            raise LogCorrupt(f"the records from {known.start} to {known.stop - 1} are damaged")

    async def find(self, first: int, error: LogCorrupt) -> range:
        """Find the extent of the damage that keeps `first` from being read; logs it if it is new."""
        known = self._at(first)
        if known is not None:
            return known
        good, end, step = first + 1, self._partition.stable_offset, 1
        while good < end and not await self._is_readable(good):
            # One after the other, but not for minutes if a batch of a million records is damaged.
            step = 1 if good - first < PROBES_ONE_BY_ONE else 2 * step
            good = min(good + step, end)
        self.forget(first, good)
        self.ranges.add(first, good)
        text = "%(partition)s: the records from %(first)d to %(last)d are damaged, and are not delivered: %(error)s"
        about = {"partition": str(self._partition.id), "topic": self._partition.id.topic, "first": first}
        logger.error(text, about | {"last": good - 1} | log_fields(error))
        return range(first, good)

    def forget(self, first: int, end: int) -> None:
        """Forget that records are damaged: they were read."""
        for piece in self.ranges.intersect(first, end):
            self.ranges.remove(*piece)

    def _at(self, offset: int) -> range | None:
        for first, end in self.ranges:
            if first <= offset < end:
                return range(first, end)
        return None

    async def _is_readable(self, offset: int) -> bool:
        try:
            await self._partition.batch_at(offset)
        except OffsetOutOfRange:
            return True  # Retention dropped it.
        except LogCorrupt:
            return False
        return True
