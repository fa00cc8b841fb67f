"""The storage port: the interface of an engine and of its log for one partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import Env
from linn.core.env.file_region import FileRegion
from linn.core.errors.replication import CopyMisplaced
from linn.core.errors.tree import BatchMalformed
from linn.core.log.facts import LogFacts
from linn.core.log.producers import Producers
from linn.core.loop.memory_budget import MemoryShare

READ_BATCHES_MAX = 256
"""Limit of the batches of one read: checking each takes 3 us, so that a read takes at most a millisecond."""


Needed = Callable[[int, int], Sequence[tuple[int, int]]]
"""Returns the ranges of offsets within [first, end) whose records are needed, ascending."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The promises of an engine, as data: core and the tests check these, never an engine's name."""

    survives_restart: bool
    """Whether a reopened log holds all records that were synced before."""
    confirm_after_sync: bool = False
    """Whether a publish with acks is confirmed only when `durable()` has passed it."""
    flush_interval_s: float | None = None
    """Interval of the flusher's background `sync`, for which no confirmation waits; None: never."""


@dataclass(frozen=True, slots=True)
class PartitionId:
    """A partition of a topic. Internal topics begin with "__"."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"


@dataclass(slots=True)
class StoredBatch:
    """A batch that stays in its file, with the facts needed to pass it on."""

    base_offset: int
    end_offset: int
    """The offset after the last one that the batch covers."""
    count: int
    size: int
    """Size in bytes."""
    format: int
    """See `RecordBatch.format`."""
    message: FileRegion
    producer_id: int = 0
    attributes: int = 0


class LogStatistics(NamedTuple):
    """Numbers about a log, for the metrics."""

    segments: int
    """Number of files that hold its records."""
    cut_bytes: int
    """Size of the torn tail that was cut off when the log was opened."""


class PartitionLog(Protocol):
    """One partition's ordered, append-only sequence of record batches. Has one writer. Engines subclass it.

    A batch at base offset b covers b to b + `offset_span` - 1; the next batch follows it. `append` is synchronous
    and does not block: it writes to memory or to the page cache.
    """

    capabilities: Capabilities
    facts: LogFacts
    """The facts derived from its batches. The partition records its own appends. A log that survives a restart
    rebuilds the facts when it is opened: by `facts.note` for each batch, in order, or from a snapshot and the
    batches after it."""

    def append(self, batch: RecordBatch, leader_epoch: int = 0) -> int:
        """Stamp `batch` with the next offset and the epoch of its leader, and store it; returns its base offset.

        The log owns the batch's bytes from then on; callers must not change them.

        Raises:
            DiskFull, StorageError: nothing was stored and the log's end has not moved.
            LogClosed: the log was closed or failed before.
        """

    def append_copy(self, batches: Sequence[RecordBatch]) -> int:
        """Store batches of another replica's log as they are; returns the new end, and records their facts.

        Base offset, append time and epoch stay. Only `durable_offset` is stamped anew: the other's claims nothing about
        this log. Call `check_copies` first. The log owns the batches' bytes from then on.

        Raises:
            CopyMisplaced, BatchCorrupt, BatchMalformed: nothing was stored.
            DiskFull, StorageError: `bounds` tells how many were stored, in order; each as a whole or not at all.
            LogClosed: the log was closed or failed before.
        """

    def durable(self) -> int:
        """The offset below which all records are on stable storage (the end, for an engine without stable storage)."""

    async def sync(self) -> None:
        """Make everything appended so far durable; afterwards `durable()` is at least the end at the call.

        Raises:
            SyncFailed: the log takes no more work.
            DiskFull, DescriptorsExhausted: nothing is lost, and a later call can succeed.
        """

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read whole stored batches from the one that holds `offset`, in order, at least one if there is one.

        Stops before the batch that would exceed `bytes_max` in total (the first is returned whatever its size), and
        after READ_BATCHES_MAX batches; it may stop earlier. At the end: an empty sequence. Batches that came from a
        disk are verified against their CRC. They take about as much memory as their size: they are not views of a much
        larger buffer.

        Raises:
            OffsetOutOfRange: offset is before the start or after the end.
            LogCorrupt: a stored batch fails its CRC.
        """

    async def trim(self, *, before: int | None = None, after: int | None = None) -> None:
        """Drop records: those `before` an offset (whole segments at the engine's convenience, but `bounds` moves at
        once if possible), or at and `after` an offset (exactly, a batch boundary; for replication).

        A cut by `after` rebuilds `facts` from the remaining batches. Raises OffsetOutOfRange where `before` is
        beyond the end or `after` is not a batch boundary.
        """

    async def restart_at(self, start: int) -> None:
        """Drop all records and their facts; the log goes on empty at an offset, whatever its bounds were.

        Durable on return. A crash meanwhile leaves the former log, or an empty one that begins at 0 or at `start`. For
        replication: the records between this log's end and the leader's start exist nowhere any more.

        Raises LogClosed, DiskFull, SyncFailed, StorageError.
        """

    async def know_producers(self, producers: Producers) -> None:
        """Put these in place of the producers of all records so far, dropped ones too.

        For replication: this log may lack records from which the leader knows them. An engine that stores snapshots of
        its facts makes one, durably.

        Raises LogClosed, DiskFull, SyncFailed, StorageError.
        """
        self.facts.producers = producers

    def bounds(self) -> tuple[int, int]:
        """(start, end): the first offset that can be read and the offset of the next append."""

    def size_bytes(self) -> int:
        """Total size of the kept batches, in memory and on disk."""

    async def offset_at(self, timestamp_ms: int) -> int:
        """Offset of the first batch whose greatest timestamp is at or after `timestamp_ms`; the end if none."""

    async def enforce_retention(
        self, now_ms: int, *, age_ms: int | None, bytes_max: int | None, before: int | None, keep: int | None = None
    ) -> int:
        """Drop whole segments, oldest first, that are older than `age_ms`, over `bytes_max`, or below `before`.

        The newest records are kept, even if over a bound, until their segment is sealed; age also seals. Nothing is
        dropped from `keep` on, which may lie within a batch. Returns the new start.

        An engine also does here the work that the non-blocking `append` deferred: the log's owner calls this every few
        seconds, even without any bound.

        Raises LogClosed, SyncFailed, StorageError.
        """

    async def close(self) -> None:
        """Sync and close. Idempotent."""

    async def delete(self) -> None:
        """Close and remove everything stored for this partition."""

    # --- optional for an engine ---

    def read_nowait(self, offset: int, bytes_max: int) -> Sequence[RecordBatch | StoredBatch]:
        """Read available records without waiting, from the batch that begins at `offset`: at least that one.

        Empty if no batch begins there, or if `read` is needed, for example to report damage. Of a StoredBatch only the
        stamps are verified: the receiver checks the CRC of the rest. Synchronous. A log that has frequently read
        records in memory or in the page cache returns them here, so that fetches need no task of their own.

        Raises LogClosed, StorageError.
        """
        return ()

    async def thin(self, needed: Needed, before: int, commit: Callable[[], Awaitable[None]]) -> bool:
        """Free the space of records before an offset that are not needed, where they are many; their offsets become
        gaps, and no other record's offset changes. Returns whether some was freed.

        `needed` returns the ranges within [first, end) whose records have to stay; others need not stay later either,
        once `commit`, which is awaited before they go, has returned. The last record of each leader epoch stays.
        Called from time to time, by one task. Crash: the log has the former batches or the thinned ones, whole.
        Cancellation: as a crash.

        Raises LogClosed, SyncFailed, StorageError; what `commit` raises, and then nothing more is freed.
        """
        return False

    def first_stored(self) -> int:
        """The smallest offset that may be the start when the log is opened again, even after a crash."""
        return self.bounds()[0]

    def statistics(self) -> LogStatistics | None:
        """Current statistics for the metrics; None: the log has no files. Cheap, and allowed on a closed log."""
        return None


def check_copies(log: PartitionLog, batches: Sequence[RecordBatch]) -> None:
    """Check that batches of another replica continue a log: from its end on, without a gap, in epochs that never go
    back, and whole.

    Each batch costs a pass over its bytes for the CRC.

    Raises CopyMisplaced, BatchCorrupt, BatchMalformed.
    """
    end, epoch = log.bounds()[1], log.facts.epochs.last
    for batch in batches:
        if batch.base_offset != end:
            raise CopyMisplaced(f"a copy of offset {batch.base_offset} came where {end} is next")
        if batch.leader_epoch < epoch:
            raise CopyMisplaced(f"a copy of epoch {batch.leader_epoch} came after one of epoch {epoch}")
        if batch.count < 1 or batch.offset_span < batch.count:
            raise BatchMalformed(f"a copy of {batch.count} records covers {batch.offset_span} offsets")
        batch.check_stored()
        end, epoch = batch.end_offset, batch.leader_epoch


@dataclass(slots=True)
class DamagedTail:
    """A damaged part to cut off before its log can be opened again."""

    place: str
    """The file, and the byte offset in it."""
    offset: int
    """The end of the log after the cut."""
    reason: str
    bytes: int
    batches: int
    """Whole batches after the damage."""
    records: int
    """Records in these batches."""


class StorageEngine(Protocol):
    """A storage engine, which opens logs. One per `[storage.*]` table, made at the start. Engines subclass it."""

    capabilities: Capabilities

    async def open(self, partition: PartitionId) -> PartitionLog:
        """Open a partition's log, creating it if there is none.

        Raises:
            LogCorrupt: the log is damaged before its tail. Nothing is deleted.
            DiskFull, DiskReadOnly, StorageError.
        """

    async def close(self) -> None:
        """Release the engine's own resources; its logs are closed before."""

    # --- optional for an engine ---

    def count_in(self, share: MemoryShare) -> None:
        """Count the memory of its logs in `share`, and keep no more in memory while the share is exceeded.

        Called before the first log is opened. An engine whose logs keep nothing in memory does nothing.
        """
        return

    async def delete_topic(self, topic: str) -> bool:
        """Remove everything stored for a topic's partitions, none of which is open.

        False: not supported; each log has to be opened, and thus created, to be deleted. Raises StorageError: another
        call continues, even after a crash.
        """
        return False

    async def examine_topic(self, topic: str) -> Sequence[int] | None:
        """Raise the errors that opening a topic's partitions would raise; change nothing. `open` continues from there.

        Returns the indexes of the existing partitions; None: the engine can't tell before it opens them. Raises
        LogCorrupt, StorageError.
        """
        return None

    async def damaged_tail(self, partition: PartitionId, *, cut: bool) -> DamagedTail | None:
        """The damage that prevents a closed log from being opened; None if there is none.

        With `cut`, the damaged part is cut off durably and kept in a file next to the log. Raises DiskFull,
        StorageError.
        """
        return None

    def partitions(self) -> list[PartitionId]:
        """All partitions, including internal ones, that `damaged_tail` can examine."""
        return []


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A storage engine, as a plugin registers it: its name in TOML, its settings' struct, and the factory."""

    name: str
    """The value of `engine =` in a `[storage.*]` table, and the name of a table that always exists."""
    settings: type[Any]
    """A frozen msgspec.Struct with a default and a help text for each field."""
    make: Callable[[str, Any, Env], StorageEngine]
    """(folder for this engine's files, settings, env) -> engine. Does no I/O."""
