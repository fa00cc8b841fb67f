"""The internal log behind a state machine: its events, one record per flush, and occasional snapshots.

Law: replaying the log from its start, then the records that wait for disk space, gives the state. A snapshot is an
ordinary record whose events replace all earlier ones, so the records before it are trimmed once it is durable; a crash
in between changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from linn.core.batch.builder import build_single
from linn.core.env.env import Clock
from linn.core.errors.tree import LogCorrupt, StorageError
from linn.core.log.partition import Partition

SNAPSHOT_AFTER_BYTES = 4 << 20
"""Bytes of events after a snapshot before another replaces them; twice as much if the snapshot is as large.

Replaying them at a start takes about 0.4 s of processor time, and twice that if each starts a delay.
"""
ROOM_RETRY_S = 0.5
"""Interval of retries on a full disk for writes that must come before work continues."""
WAITING_BYTES_MAX = 256 << 10
"""Limit of records waiting for disk space after a snapshot, unless the snapshot is larger: the next snapshot then costs
no more than the records that it replaces."""
WAITING_RECORD_BYTES = 48
"""Memory that a waiting record takes besides its own bytes."""
_READ_BYTES = 1 << 20


class StateLog:
    """The log of a state machine's encoded events."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self.clock = clock
        self._snapshot_bytes = 0
        self._compacting = False
        self._waiting: deque[bytes] = deque()
        """Records for which a full disk has no space, in order."""
        self._waiting_snapshot_bytes = 0
        """Size of the first waiting record if it is a snapshot."""
        self._waiting_bytes = 0

    async def replay(self) -> AsyncIterator[bytes]:
        """All records in order. Raises LogCorrupt."""
        offset = self.partition.start_offset
        while offset < self.partition.stable_offset:
            for batch in await self.partition.read(offset, _READ_BYTES):
                for index in range(batch.count):
                    value = batch.value(index)
                    if value is None:
                        raise LogCorrupt(f"{self.partition.id} holds a record without a value")
                    # If the log begins with a snapshot, as it usually does, this is it.
                    self._snapshot_bytes = self._snapshot_bytes or len(value)
                    yield value
                offset = batch.end_offset

    def append(self, events: bytes) -> int:
        """Append one record; returns the offset after it. Raises StorageError: nothing was stored."""
        return self.partition.append(build_single(events, self.clock.now_ms(), 0)) + 1

    @property
    def waiting(self) -> int:
        """The number of records that wait for disk space."""
        return len(self._waiting)

    def write(self, record: bytes, snapshot: Callable[[], bytes]) -> int:
        """Append the waiting records, then this one unless it is empty; returns the offset after the last, or 0.

        Raises StorageError: unstored records wait.

        The disk may stay full: waiting records that outgrow a snapshot are replaced by one. `snapshot` gives the state
        with all events that were given to `write`.
        """
        waiting, end = self._waiting, 0
        try:
            while waiting:
                # One by one: each try on a full disk costs the same, however many wait.
                end = self.append(waiting[0])
                waiting.popleft()
            self._waiting_snapshot_bytes = self._waiting_bytes = 0
            if record:
                end = self.append(record)
        except StorageError:
            if record:
                self._wait(record, snapshot)
            raise
        return end

    def _wait(self, record: bytes, snapshot: Callable[[], bytes]) -> None:
        self._waiting.append(record)
        self._waiting_bytes += len(record) + WAITING_RECORD_BYTES
        if len(self._waiting) > 1 and self._waiting_bytes > max(WAITING_BYTES_MAX, self._waiting_snapshot_bytes):
            replacement = snapshot()
            self._waiting = deque([replacement])
            self._waiting_snapshot_bytes, self._waiting_bytes = len(replacement), 0

    def is_due(self) -> bool:
        """Whether `compact` would replace records."""
        behind = self.partition.log.size_bytes() - self._snapshot_bytes
        return behind >= SNAPSHOT_AFTER_BYTES + min(self._snapshot_bytes, SNAPSHOT_AFTER_BYTES) and not self._compacting

    async def compact(self, snapshot: Callable[[], Sequence[bytes]], *, force: bool = False) -> None:
        """Replace the stored records by a snapshot, if there are enough. `snapshot` is called at most once.

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
            await self.partition.make_durable()
            await self.partition.log.trim(before=start)
        finally:
            self._compacting = False
