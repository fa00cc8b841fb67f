"""SqliteLog: a partition's log as rows, one per batch.

`linn.core.log.storage.PartitionLog` says what each method promises.

Laws: bounds and sizes are kept in memory and follow what was committed, so that a failed statement changes neither.
A batch is committed when `append` returns, so it survives the process; it is durable once the WAL file was synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from linn.api import (
    READ_BATCHES_MAX,
    BatchCorrupt,
    BatchMalformed,
    Capabilities,
    Env,
    LogClosed,
    LogCorrupt,
    LogFacts,
    OffsetOutOfRange,
    PartitionLog,
    RecordBatch,
    check_copies,
)
from linn_sqlite_engine.database import Database, files_of

WAL_BYTES_MAX = 64 << 20
"""A checkpoint is made, by the chores, once so much was appended: a start reads the WAL that it finds."""

_INSERT = "INSERT INTO batches VALUES (?, ?, ?, ?, ?)"
_SET_BOUNDS = "UPDATE bounds SET start_offset = ?, end_offset = ?"
_BEFORE = "FROM batches WHERE base_offset < ?1 AND end_offset <= ?1"
"""What a start takes away, with a bound on the primary key, so that what is kept is not looked at."""
_AFTER = "FROM batches WHERE base_offset >= ?1"
_FROM_TIME = """
SELECT base_offset FROM batches WHERE max_timestamp_ms >= ? AND end_offset > ? ORDER BY base_offset LIMIT 1
"""


class SqliteLog(PartitionLog):
    """One partition's log."""

    def __init__(self, name: str, database: Database, env: Env, capabilities: Capabilities) -> None:
        """Take over an open database."""
        self.capabilities = capabilities
        self.facts = LogFacts()
        self._name = name
        self._database = database
        self._env = env
        self._start, self._end, self._size_bytes, self._append_time_ms = database.summary
        self._durable = 0
        self._unchecked_bytes = 0
        """Appended since the last checkpoint."""
        self._closed = False

    async def find_facts(self) -> None:
        """Rebuild the facts from the stored batches, up to a damaged one, of which its readers are told.

        Raises StorageError.
        """
        self.facts, offset = LogFacts(), self._start
        with suppress(LogCorrupt):
            while offset < self._end:
                for batch in await self.read(offset, 1 << 20):
                    self.facts.note(batch)
                    offset = batch.end_offset

    # --- appending -----------------------------------------------------------------------------------------------

    def append(self, batch: RecordBatch, leader_epoch: int = 0) -> int:
        """As the port says."""
        self._check_open()
        now_ms = max(self._env.clock.now_ms(), self._append_time_ms)
        offset = self._end
        batch.stamp(offset, now_ms, self._durable, leader_epoch)
        row = (offset, batch.end_offset, now_ms, batch.max_timestamp_ms, batch.message)
        self._database.write("append to", (_INSERT, row))
        self._end, self._append_time_ms = batch.end_offset, now_ms
        self._size_bytes += batch.size
        self._unchecked_bytes += batch.size
        return offset

    def append_copy(self, batches: Sequence[RecordBatch]) -> int:
        """As the port says, in one commit."""
        self._check_open()
        check_copies(self, batches)
        rows: list[tuple[str, tuple[object, ...]]] = []
        for batch in batches:
            batch.stamp(batch.base_offset, batch.append_time_ms, self._durable, batch.leader_epoch)
            times_ms = batch.append_time_ms, batch.max_timestamp_ms
            rows.append((_INSERT, (batch.base_offset, batch.end_offset, *times_ms, batch.message)))
        self._database.write("append to", *rows)
        for batch in batches:
            self.facts.note(batch)
            self._end, self._append_time_ms = batch.end_offset, batch.append_time_ms
            self._size_bytes += batch.size
            self._unchecked_bytes += batch.size
        return self._end

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"{self._name} is closed")

    # --- durability ----------------------------------------------------------------------------------------------

    def durable(self) -> int:
        """As the port says."""
        return self._durable

    async def sync(self) -> None:
        """Sync the WAL file, where every batch is or was. Raises SyncFailed."""
        self._check_open()
        end = self._end
        file = self._env.disk.open(f"{self._database.path}-wal", create=True)
        try:
            await file.sync()
        finally:
            file.close()
        # It may have been cut meanwhile.
        self._durable = max(self._durable, min(end, self._end))

    # --- reading -------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """(start, end)."""
        return self._start, self._end

    def size_bytes(self) -> int:
        """Bytes of the batches; SQLite's own pages are not counted."""
        return self._size_bytes

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """As the port says."""
        self._check_open()
        self._check_range(offset)
        left, count = bytes_max, 0

        def enough(row: tuple[bytes]) -> bool:
            nonlocal left, count
            left, count = left - len(row[0]), count + 1
            return count > 1 and (left < 0 or count > READ_BATCHES_MAX)

        statement = "SELECT message FROM batches WHERE end_offset > ? AND base_offset >= ? ORDER BY base_offset"
        rows = await self._database.read("read", statement, (offset, self._base_of(offset)), enough)
        return [self._checked(bytearray(message)) for (message,) in rows]

    def _base_of(self, offset: int) -> int:
        """The base of the batch that holds an offset, found by the primary key; the offset itself at the end."""
        statement = "SELECT max(base_offset) FROM batches WHERE base_offset <= ?"
        (base,) = self._database.read_now("read", statement, (offset,))
        return offset if base is None else int(base)

    def _checked(self, message: bytearray) -> RecordBatch:
        try:
            batch = RecordBatch(message)
            batch.check_stored()
        except (BatchCorrupt, BatchMalformed) as error:
            raise LogCorrupt(f"{self._database.path}: {error.text}. Nothing was changed") from error
        return batch

    def _check_range(self, offset: int) -> None:
        if not self._start <= offset <= self._end:
            raise OffsetOutOfRange(f"{self._name} begins at offset {self._start} and ends at {self._end}, not {offset}")

    async def offset_at(self, timestamp_ms: int) -> int:
        """As the port says; linear in the number of batches."""
        self._check_open()
        rows = await self._database.read("search", _FROM_TIME, (timestamp_ms, self._start), lambda row: False)
        return max(self._start, rows[0][0]) if rows else self._end

    # --- forgetting ----------------------------------------------------------------------------------------------

    async def trim(self, *, before: int | None = None, after: int | None = None) -> None:
        """As the port says. `before` keeps the one batch that holds the new start."""
        self._check_open()
        if before is not None:
            if before > self._end:
                raise OffsetOutOfRange(f"{self._name} ends at offset {self._end}, before {before}")
            self._forget_before(before)
        if after is not None:
            self._check_range(after)
            self._forget_after(after)
            await self.find_facts()

    def _forget_before(self, start: int) -> None:
        start = max(start, self._start)
        if start == self._start:
            return
        self._delete(_BEFORE, start, (start, self._end))
        self._start = start

    def _forget_after(self, after: int) -> None:
        if after != self._end and self._base_of(after) != after:
            raise OffsetOutOfRange(f"{self._name} has no batch that begins at offset {after}")
        self._delete(_AFTER, after, (self._start, after))
        self._end = after
        self._durable = min(self._durable, after)

    async def restart_at(self, start: int) -> None:
        """As the port says, in one commit, which is then synced."""
        self._check_open()
        self._database.write("empty", ("DELETE FROM batches", ()), (_SET_BOUNDS, (start, start)))
        self.facts, self._size_bytes = LogFacts(), 0
        self._start = self._end = self._durable = start
        await self.sync()

    def _delete(self, rows: str, offset: int, bounds: tuple[int, int]) -> None:
        measured = f"SELECT coalesce(sum(length(message)), 0) {rows}"
        (size_bytes,) = self._database.read_now("measure", measured, (offset,))
        self._database.write("trim", (f"DELETE {rows}", (offset,)), (_SET_BOUNDS, bounds))
        self._size_bytes -= size_bytes

    async def enforce_retention(
        self, now_ms: int, *, age_ms: int | None, bytes_max: int | None, before: int | None, keep: int | None = None
    ) -> int:
        """As the port says, by single batches. The newest one goes by age alone."""
        self._check_open()
        excess = self._size_bytes - bytes_max if bytes_max is not None else 0
        oldest_ms = now_ms - age_ms if age_ms is not None else None
        end = self._end

        def kept(row: tuple[int, int, int]) -> bool:
            nonlocal excess
            end_offset, append_time_ms, size = row
            is_old = oldest_ms is not None and append_time_ms < oldest_ms
            is_over = end_offset != end and (excess > 0 or (before is not None and end_offset <= before))
            excess -= size
            is_needed = keep is not None and end_offset > keep
            return is_needed or not (is_old or is_over)

        statement = "SELECT end_offset, append_time_ms, length(message) FROM batches ORDER BY base_offset"
        gone = await self._database.read("look through", statement, (), kept)
        if gone:
            self._forget_before(gone[-1][0])
        if self._unchecked_bytes >= WAL_BYTES_MAX:
            self._unchecked_bytes = 0
            await self._database.checkpoint()
        return self._start

    # --- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Sync and close. Idempotent."""
        if self._closed:
            return
        await self.sync()
        self._closed = True
        await self._database.close()

    async def delete(self) -> None:
        """Close, and delete the files."""
        if not self._closed:
            self._closed = True
            await self._database.close()
        for path in files_of(self._database.path):
            self._env.disk.unlink(path)
