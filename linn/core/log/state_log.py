"""The internal log behind a state machine: its events, one record per flush, and occasional snapshots.

Laws: replaying the log from its start, then the records that wait for disk space, gives the state. A snapshot is an
ordinary record whose events replace all earlier ones, so the records before it are trimmed once it is committed; a
crash in between, or the end of this broker's leadership, changes nothing.

A replicated log is replayed when this broker has become its leader and everything in it is committed. It belongs to
that leadership: once it is over, nothing is appended or trimmed here, even if the broker leads the log again later.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

from linn.core.batch.builder import build_single
from linn.core.env.env import Clock
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, LogCorrupt, StorageError
from linn.core.log.partition import Partition, Role

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


async def read_committed(partition: Partition, offset: int, end: int) -> AsyncGenerator[bytes]:
    """The records of a state log from an offset up to a watermark, in order. Raises LogCorrupt, OffsetOutOfRange."""
    while offset < end and (batches := await partition.read(offset, _READ_BYTES)):
        for batch in batches:
            for index in range(batch.count):
                value = batch.value(index)
                if value is None:
                    raise LogCorrupt(f"{partition.id} holds a record without a value")
                yield value
            offset = batch.end_offset


class StateLog:
    """The log of a state machine's encoded events."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        partition.may_be_timed = False
        self.clock = clock
        self.committed = partition.committed
        """The mark that answers wait for. It fails when this broker loses the log, and a later leadership has another.
        """
        self._abandoned: NotLeader | None = None
        """The reason for which the log was abandoned."""
        self._snapshot_bytes = 0
        self._compacting = False
        self._waiting: deque[bytes] = deque()
        """Records for which a full disk has no space, in order."""
        self._waiting_snapshot_bytes = 0
        """Size of the first waiting record if it is a snapshot."""
        self._waiting_bytes = 0

    @property
    def is_replicated(self) -> bool:
        """Whether other brokers may lead the log."""
        return self.partition.role is not Role.ALONE

    def abandon(self, reason: NotLeader) -> None:
        """Touch the log no more: another broker leads it. From now on this raises the reason wherever it would."""
        self._abandoned = self._abandoned or reason

    @property
    def lost(self) -> LinnError | None:
        """The reason why the log is no longer this broker's; None: it is."""
        return self._abandoned or self.committed.failure

    def check_led(self) -> None:
        """Check that the log is still this broker's. Raises NotLeader, the reason if it was abandoned."""
        if (lost := self.lost) is not None:
            raise lost

    async def replay(self) -> AsyncIterator[bytes]:
        """All records in order, which are committed. Raises LogCorrupt, NotLeader."""
        if not self.partition.leads:
            raise self.partition.not_leader()
        self.committed = self.partition.committed
        offset, end = self.partition.log.bounds()
        assert self.committed.offset == end, "a new leader replays a log when everything in it is committed"
        async with aclosing(read_committed(self.partition, offset, end)) as values:
            async for value in values:
                self.check_led()
                # If the log begins with a snapshot, as it usually does, this is it.
                self._snapshot_bytes = self._snapshot_bytes or len(value)
                yield value

    def append(self, events: bytes) -> int:
        """Append one record; returns the offset after it. Raises NotLeader, StorageError: nothing was stored."""
        if self._abandoned is not None or self.committed.failure is not None:
            self.check_led()
        return self.partition.append(build_single(events, self.clock.now_ms(), 0)) + 1

    @property
    def waiting(self) -> int:
        """The number of records that wait for disk space."""
        return len(self._waiting)

    def write(self, record: bytes, snapshot: Callable[[], bytes]) -> int:
        """Append the waiting records, then this one unless it is empty; returns the offset after the last, or 0.

        Raises StorageError: unstored records wait. NotLeader: nothing waits, for the log is another broker's.

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
        except NotLeader:
            raise
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

        Raises StorageError: the old records remain. NotLeader: so they do, and the next leader may have the snapshot
        behind them, or a part of its records.
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
            await self.make_durable()
            self.check_led()
            await self.partition.log.trim(before=start)
        finally:
            self._compacting = False

    async def compact_in_background(self, snapshot: Callable[[], Sequence[bytes]]) -> None:
        """Compact in a task of its own, which ends without an error if the log is lost."""
        with contextlib.suppress(NotLeader):
            await self.compact(snapshot)

    async def make_durable(self) -> None:
        """Put all records on stable storage, and wait until they are committed. Raises StorageError, NotLeader."""
        self.check_led()
        await self.partition.make_durable()

    async def commit_all(self) -> None:
        """Commit all records without waiting for a background task. Raises SyncFailed, NotLeader."""
        self.check_led()
        await self.partition.commit_all()
