"""The storage port: what an engine gives for one partition, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import Env
from linn.core.env.file_region import FileRegion

READ_BATCHES_MAX = 256
"""Batches of one read, however small: checking each takes 3 us, so that a read is a step of a millisecond at most."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine promises, as data: core and the tests ask this, never for an engine's name."""

    survives_restart: bool
    """Whether a log opened again holds what was synced before."""
    confirm_after_sync: bool = False
    """Whether a publish with acks is confirmed only when `durable()` has passed it."""
    flush_interval_s: float | None = None
    """How often the flusher calls `sync` in the background, which no confirmation waits for; None: never."""
    reads_at_once: bool = False
    """Whether its logs are `PromptLog`s."""
    gives_statistics: bool = False
    """Whether its logs are `MeasuredLog`s."""
    keeps_in_memory: bool = False
    """Whether the engine is a `memory_budget.MemoryEngine`."""
    recovers: bool = False
    """Whether the engine is a `RecoverableEngine`."""
    deletes_topics: bool = False
    """Whether the engine is a `DeletingEngine`. Of others the logs are opened, and so made, to be deleted."""


@dataclass(frozen=True, slots=True)
class PartitionId:
    """A partition of a topic. Internal topics begin with "__"."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"


@dataclass(slots=True)
class StoredBatch:
    """A batch that stays in its file: what has to be known of it to hand it on."""

    base_offset: int
    count: int
    size: int
    """Bytes."""
    message: FileRegion

    @property
    def end_offset(self) -> int:
        """The offset behind the last record."""
        return self.base_offset + self.count


class PartitionLog(Protocol):
    """One partition's ordered, append-only sequence of record batches. Has one writer.

    Offsets are dense: a batch of n records at base offset b covers b to b+n-1. `append` is synchronous and does not
    block: it writes to memory or to the page cache.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def append(self, batch: RecordBatch) -> int:
        """Stamp `batch` with the next offset and store it; returns that base offset.

        The log owns the batch's bytes from here on; nobody changes them.

        Raises:
            DiskFull, StorageError: nothing was stored and the log's end is where it was.
            LogClosed: the log was closed or failed before.
        """

    def durable(self) -> int:
        """The offset before which everything is on stable storage (the end, for an engine that has none)."""

    async def sync(self) -> None:
        """Make everything that is appended now durable; afterwards `durable()` is at least the end at the call.

        Raises SyncFailed; the log takes no more work then.
        """

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Whole stored batches from the one that holds `offset`, in order, at least one if there is one.

        Stops before the batch that would exceed `bytes_max` in total (the first is returned whatever its size), and
        behind READ_BATCHES_MAX batches; it may stop earlier. At the end: an empty sequence. Batches are verified
        against their CRC when they came from a disk. What they keep in memory is about what they hold: they are no
        views of a much larger buffer.

        Raises:
            OffsetOutOfRange: offset is before the start or after the end.
            LogCorrupt: a stored batch fails its CRC.
        """

    async def trim(self, *, before: int | None = None, after: int | None = None) -> None:
        """Forget records: those `before` an offset (whole segments at the engine's convenience, but `bounds` moves at
        once where the engine can), or those at and `after` an offset (exactly, a batch boundary; for replication).

        Raises OffsetOutOfRange where `before` is beyond the end or `after` is not a batch boundary.
        """

    def bounds(self) -> tuple[int, int]:
        """(start, end): the first offset that can be read and the one the next append gets."""

    def size_bytes(self) -> int:
        """Bytes of batches kept, wherever they lie."""

    async def offset_at(self, timestamp_ms: int) -> int:
        """Offset of the first batch whose greatest timestamp is at or after `timestamp_ms`; the end without one."""

    async def enforce_retention(
        self, now_ms: int, *, age_ms: int | None, bytes_max: int | None, before: int | None
    ) -> int:
        """Drop what is older than `age_ms`, over `bytes_max`, or below `before`, oldest first, by whole segments.

        The newest records are kept, even if over a bound, until their segment is sealed; age also seals. Returns the
        new start. An engine also does here what `append`, which doesn't block, left behind: whoever owns the log calls
        this every few seconds, also with no bound at all.

        Raises LogClosed, SyncFailed, StorageError.
        """

    async def close(self) -> None:
        """Sync and close. Idempotent."""

    async def delete(self) -> None:
        """Close and remove everything stored for this partition."""


class PromptLog(PartitionLog, Protocol):
    """A log that has what readers want most often at hand: in memory, in the page cache, or to be sent from a file."""

    def at_once(self, offset: int, bytes_max: int) -> Sequence[RecordBatch | StoredBatch]:
        """As `read`, of what can be had without waiting, from the batch that begins at `offset`: at least that one.

        Nothing where none begins there, where `read` is the better way, or knows more of a damage. Of a StoredBatch
        only the stamps are verified: who receives it checks the CRC of the rest. Synchronous.

        Raises LogClosed, StorageError.
        """


class LogStatistics(NamedTuple):
    """A log in numbers, for the metrics."""

    segments: int
    """Files of records that it consists of."""
    cut_bytes: int
    """Of the torn tail that was cut off when it was opened."""


class MeasuredLog(PartitionLog, Protocol):
    """A log that says more of itself than every log does."""

    def statistics(self) -> LogStatistics:
        """As of now. Cheap, and also of a log that is closed."""


class StorageEngine(Protocol):
    """Opens logs. One per `[storage.*]` table; made once, when the broker starts."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self, partition: PartitionId) -> PartitionLog:
        """Open a partition's log, creating it where there is none.

        Raises:
            LogCorrupt: damage before the tail. Nothing is deleted.
            DiskFull, DiskReadOnly, StorageError.
        """

    async def close(self) -> None:
        """Release what the engine itself holds; its logs are closed before."""


class DeletingEngine(StorageEngine, Protocol):
    """An engine that deletes logs without opening them, which needs no room and no log that is whole."""

    async def delete_topic(self, topic: str) -> None:
        """Remove all that is stored of a topic's partitions, whichever there are; none of them is open.

        Raises StorageError: another call goes on, also after a crash.
        """


@dataclass(slots=True)
class DamagedTail:
    """What has to be cut off before a damaged log can be opened again."""

    place: str
    """File and byte."""
    offset: int
    """Where the log would end."""
    reason: str
    bytes: int
    batches: int
    """Whole batches behind the damage."""
    records: int
    """In these batches."""


class RecoverableEngine(StorageEngine, Protocol):
    """An engine whose logs may be found damaged: it looks before it changes anything, and cuts where it is told to."""

    async def examine_topic(self, topic: str) -> Sequence[int]:
        """Raise what opening the partitions of a topic would raise; change nothing. `open` goes on from there.

        Returns the indexes of the partitions that there are. Raises LogCorrupt, StorageError.
        """

    async def damaged_tail(self, partition: PartitionId, *, cut: bool) -> DamagedTail | None:
        """What keeps a log, which is not open, from being opened; None where nothing does.

        With `cut` it is cut off, durably, and set aside where the engine keeps the log. Raises DiskFull, StorageError.
        """

    def partitions(self) -> list[PartitionId]:
        """All that there are on the disk, internal ones too."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What a plugin registers: the name TOML uses, the settings' struct, and the factory."""

    name: str
    """The value of `engine =` in a `[storage.*]` table, and the table that exists without being written."""
    settings: type[Any]
    """A frozen msgspec.Struct with a default and a help text for each field."""
    make: Callable[[str, Any, Env], StorageEngine]
    """(folder for this engine's files, settings, env) -> engine. Does no I/O."""
