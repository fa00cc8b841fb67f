"""The internal log behind a state machine: its events, one record per flush, and now and then a snapshot.

Law: replaying the log from its start gives the state. A snapshot is an ordinary record whose events replace all earlier
ones, so the records before it are trimmed once it is durable; a crash in between changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from linn.core.batch.builder import build_single
from linn.core.env.env import Clock
from linn.core.errors.tree import LogCorrupt
from linn.core.log.partition import Partition

SNAPSHOT_AFTER_BYTES = 4 << 20
"""Bytes of events after a snapshot before another replaces them; twice as much if the snapshot is as large.

Replaying so many takes a start about 0.4 s of processor time, and as long again if each has a delay to begin.
"""
ROOM_RETRY_S = 0.5
"""Interval of retries on a full disk for writes that must come before work continues."""
_READ_BYTES = 1 << 20


class StateLog:
    """The log of a state machine's encoded events."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self.clock = clock
        self._snapshot_bytes = 0
        self._compacting = False

    async def replay(self) -> AsyncIterator[bytes]:
        """All records in order. Raises LogCorrupt."""
        offset = self.partition.start_offset
        while offset < self.partition.high_watermark:
            for batch in await self.partition.read(offset, _READ_BYTES):
                for index in range(batch.count):
                    value = batch.value(index)
                    if value is None:
                        raise LogCorrupt(f"{self.partition.id} holds a record without a value")
                    # If the log begins with a snapshot, as it mostly does, this is it.
                    self._snapshot_bytes = self._snapshot_bytes or len(value)
                    yield value
                offset = batch.end_offset

    def append(self, events: bytes) -> int:
        """Append one record; returns the offset behind it. Raises StorageError: nothing was stored."""
        return self.partition.append(build_single(events, self.clock.now_ms(), 0)) + 1

    def is_due(self) -> bool:
        """Whether `compact` would do something."""
        behind = self.partition.log.size_bytes() - self._snapshot_bytes
        return behind >= SNAPSHOT_AFTER_BYTES + min(self._snapshot_bytes, SNAPSHOT_AFTER_BYTES) and not self._compacting

    async def compact(self, snapshot: Callable[[], Sequence[bytes]], *, force: bool = False) -> None:
        """Replace the stored records by a snapshot's, if there are enough. `snapshot` is called at most once.

        Raises StorageError: the old records remain.
        Cancellation: either the old records or the snapshot remain, with everything appended since.
        """
        if self._compacting or not (force or self.is_due()):
            return
        self._compacting = True
        try:
            # `snapshot` may itself append events that it replaces, so it is called first.
            records = snapshot()
            start = self.partition.log.bounds()[1]
            for record in records:
                self.append(record)
            self._snapshot_bytes = sum(map(len, records))
            await self.partition.log.sync()
            await self.partition.log.trim(before=start)
        finally:
            self._compacting = False
