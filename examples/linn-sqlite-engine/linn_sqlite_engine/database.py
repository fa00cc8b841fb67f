"""One partition's database: its schema, its statements, and which connection runs what.

Two connections, because SQLite in WAL mode lets one write while another reads and neither waits. The loop's own appends
and small changes go to `_writer`, at once: a commit writes to the WAL file's pages in memory. What may wait for a disk
goes to `_reader`, in a thread, one piece of work at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeVar

import trio

from linn_sqlite_engine.translation import translated

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    base_offset INTEGER PRIMARY KEY,
    end_offset INTEGER NOT NULL,
    append_time_ms INTEGER NOT NULL,
    max_timestamp_ms INTEGER NOT NULL,
    message BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS bounds (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL
);
INSERT OR IGNORE INTO bounds VALUES (1, 0, 0);
"""
"""`bounds.end_offset` counts where it is beyond the last batch: after that was trimmed away."""

_SUMMARY = """
SELECT start_offset, max(end_offset, coalesce((SELECT max(end_offset) FROM batches), 0)),
    (SELECT coalesce(sum(length(message)), 0) FROM batches), (SELECT coalesce(max(append_time_ms), 0) FROM batches)
FROM bounds
"""


class Database:
    """Raises StorageErrors, never a `sqlite3.Error`."""

    def __init__(self, path: str) -> None:
        """Open, and make what is missing. Blocks: for a thread. Raises LogCorrupt, StorageError."""
        self.path = path
        with translated("open", path), ExitStack() as opened:
            self._writer = opened.enter_context(closing(_connection(path)))
            self._reader = opened.enter_context(closing(_connection(path)))
            # Whatever may have been left by a process that was killed is in the WAL, which is read from now on.
            self._writer.executescript(_SCHEMA)
            self.summary: tuple[int, int, int, int] = self._writer.execute(_SUMMARY).fetchone()
            """(start, end, bytes of batches, greatest append time) as it was found."""
            opened.pop_all()
        self._reading = trio.Lock()

    def write(self, deed: str, *statements: tuple[str, Sequence[Any]]) -> None:
        """Run statements as one transaction: all of it is committed or nothing. Does not wait for a disk."""
        with translated(deed, self.path), self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                self._writer.execute(statement, values)

    async def read(self, deed: str, statement: str, values: Sequence[Any], enough: Callable[[Any], bool]) -> list[Any]:
        """Rows of a query in a thread, up to the first of which `enough` says so, which is left out."""

        def rows() -> list[Any]:
            found: list[Any] = []
            cursor = self._reader.execute(statement, values)
            try:
                for row in cursor:
                    if enough(row):
                        break
                    found.append(row)
            finally:
                cursor.close()
            return found

        return await self._in_thread(deed, rows)

    def read_now(self, deed: str, statement: str, values: Sequence[Any] = ()) -> Any:
        """The one row of a query that few pages answer, on the loop."""
        with translated(deed, self.path):
            return self._writer.execute(statement, values).fetchone()

    async def checkpoint(self) -> None:
        """Move what the WAL holds into the database, so that it begins again."""
        await self._in_thread("checkpoint", lambda: self._reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    async def close(self) -> None:
        """Close both connections; the last one to go makes a checkpoint and deletes the WAL."""

        def close() -> None:
            self._reader.close()
            self._writer.close()

        with trio.CancelScope(shield=True):
            await self._in_thread("close", close)

    async def _in_thread(self, deed: str, work: Callable[[], T]) -> T:
        async with self._reading:
            with translated(deed, self.path):
                # A plugin of its own has no door off the loop but trio's.
                return await trio.to_thread.run_sync(work)  # noqa: TID251


def _connection(path: str) -> sqlite3.Connection:
    # No implicit transactions. Connections change threads, but are never used in two at once.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        # A commit does not wait for the disk; `SqliteLog.sync` does, and so does a checkpoint before the WAL begins
        # again.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
    except BaseException:
        connection.close()
        raise
    return connection


def files_of(path: str) -> Iterable[str]:
    """The files that a database may consist of."""
    return path, f"{path}-wal", f"{path}-shm"
