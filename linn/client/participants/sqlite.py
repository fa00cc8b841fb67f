"""SqliteParticipant: effects in a SQLite database, with their marks in two small tables beside them.

Laws: a transaction begins with the write lock (BEGIN IMMEDIATE), so nothing that it has read can change before it ends.
A savepoint around the effects proves that the application did not end the transaction: it is gone once the transaction
has ended, even if another one was begun.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Self

from linn.client.participants.participant import NO_FLOOR, Floor, Mark, Place
from linn.client.participants.spans import Span, applied_parts, conflict, is_below, merged_span, raised_floor
from linn.core.errors.tree import TransactionEnded

_TABLES = (
    """CREATE TABLE IF NOT EXISTS linn_places (
        place INTEGER PRIMARY KEY,
        topic_id BLOB NOT NULL,
        partition INTEGER NOT NULL,
        reader TEXT NOT NULL,
        floor_epoch INTEGER NOT NULL DEFAULT 0,
        floor_offset INTEGER NOT NULL DEFAULT 0,
        UNIQUE (topic_id, partition, reader)
    )""",
    """CREATE TABLE IF NOT EXISTS linn_marks (
        place INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        first INTEGER NOT NULL,
        "end" INTEGER NOT NULL,
        PRIMARY KEY (place, epoch, "end")
    ) WITHOUT ROWID""",
)
_HAS_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('linn_places', 'linn_marks')"
_FLOOR = "SELECT floor_epoch, floor_offset FROM linn_places WHERE topic_id = ? AND partition = ? AND reader = ?"
_PLACE = (
    "SELECT place, floor_epoch, floor_offset, EXISTS (SELECT 1 FROM linn_marks WHERE place = linn_places.place) "
    "FROM linn_places WHERE topic_id = ? AND partition = ? AND reader = ?"
)
_ADD_PLACE = "INSERT INTO linn_places (topic_id, partition, reader) VALUES (?, ?, ?)"
_TOUCHING = 'SELECT first, "end" FROM linn_marks WHERE place = ? AND epoch = ? AND "end" >= ? AND first <= ?'
_DROP_TOUCHING = 'DELETE FROM linn_marks WHERE place = ? AND epoch = ? AND "end" >= ? AND first <= ?'
_ADD_MARK = "INSERT INTO linn_marks VALUES (?, ?, ?, ?)"
_RAISE = "UPDATE linn_places SET floor_epoch = ?, floor_offset = ? WHERE place = ?"
_FORGET = 'DELETE FROM linn_marks WHERE place = ? AND epoch <= ? AND "end" <= ?'


class SqliteHandle(sqlite3.Connection):
    """Connection for the application: it refuses to end a participant's transaction."""

    is_held = False

    def _refuse(self, call: str) -> None:
        if self.is_held:
            raise TransactionEnded(f"{call} would end the transaction, which is the participant's: leave it to linn")

    def commit(self) -> None:
        """Commit, but not a participant's transaction. Raises TransactionEnded."""
        self._refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        """Roll back, but not a participant's transaction. Raises TransactionEnded."""
        self._refuse("rollback()")
        super().rollback()

    def executescript(self, sql_script: str) -> sqlite3.Cursor:
        """Execute a script, which commits first, so not in a participant's transaction. Raises TransactionEnded."""
        self._refuse("executescript()")
        return super().executescript(sql_script)

    def __enter__(self) -> Self:
        self._refuse("`with` a connection")
        return super().__enter__()


class SqliteParticipant:
    """Effects in a SQLite database. The handle is the `sqlite3.Connection`; it never commits by itself.

    `timeout_s` is the time to wait for a lock of another process. `prepare_connection` is called with each new
    connection, for PRAGMAs and tables of the application. Use it in the thread that calls `open`, or pass
    `check_same_thread=False` and use it in one thread at a time.

    Example:
        participant = SqliteParticipant("shop.db")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = 30,
        uri: bool = False,
        check_same_thread: bool = True,
        cached_statements: int = 128,
        prepare_connection: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._options: dict[str, Any] = {
            "timeout": timeout_s,
            "uri": uri,
            "check_same_thread": check_same_thread,
            "cached_statements": cached_statements,
        }
        self._prepare_connection = prepare_connection
        self._connection: SqliteHandle | None = None
        self._cursor: sqlite3.Cursor
        self._place: Place | None = None
        self._place_number = 0
        self._floor = NO_FLOOR
        self._has_marks = False

    def open(self) -> None:
        """Open the database, and make the two tables where they are missing. Raises sqlite3.Error."""
        self._connect()

    def _connect(self) -> SqliteHandle:
        if self._connection is not None:
            return self._connection
        # Python's own transaction control is off: it would begin transactions, and end them.
        connection = sqlite3.connect(self._path, isolation_level=None, factory=SqliteHandle, **self._options)
        try:
            cursor = connection.cursor()  # Made before the application sets a row_factory for its own cursors.
            cursor.execute("PRAGMA synchronous = FULL")  # SQLite may be built with less for WAL mode.
            if self._prepare_connection is not None:
                self._prepare_connection(connection)
            if cursor.execute(_HAS_TABLES).fetchone()[0] < len(_TABLES):
                cursor.execute("BEGIN IMMEDIATE")
                for table in _TABLES:
                    cursor.execute(table)
                cursor.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._connection, self._cursor = connection, cursor
        return connection

    def floor(self, place: Place) -> Floor:
        """The floor of a place; `NO_FLOOR` if nothing was ever committed. Raises sqlite3.Error."""
        self._connect()
        row = self._cursor.execute(_FLOOR, (place.topic_id.bytes, place.partition, place.reader)).fetchone()
        return Floor(*row) if row is not None else NO_FLOOR

    def begin(self, place: Place) -> sqlite3.Connection:
        """Begin a transaction and take the write lock. Raises sqlite3.Error, such as `database is locked`."""
        connection, named = self._connect(), (place.topic_id.bytes, place.partition, place.reader)
        execute = self._cursor.execute
        execute("BEGIN IMMEDIATE")
        row = execute(_PLACE, named).fetchone()
        if row is None:
            execute(_ADD_PLACE, named)
            row = (self._cursor.lastrowid, *NO_FLOOR, 0)
        self._place_number, epoch, offset, self._has_marks = row
        self._floor, self._place = Floor(epoch, offset), place
        execute("SAVEPOINT linn_effects")
        connection.is_held = True
        return connection

    def applied(self, mark: Mark) -> Sequence[Span]:
        """The parts of a mark that had their effect already. Raises sqlite3.Error, TransactionEnded."""
        self._held()
        return applied_parts(mark, self._floor, self._touching(mark))

    def _touching(self, mark: Mark) -> list[Span]:
        """Return the stored spans that overlap a mark or adjoin it."""
        if not self._has_marks:
            return []
        return self._cursor.execute(_TOUCHING, (self._place_number, *_bounds(mark))).fetchall()

    def prepare(self) -> None:
        """Check that the transaction is open. Raises TransactionEnded.

        SQLite reports a violated deferred foreign key only when it commits.
        """
        self._held()

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Commit effects, marks and floor. Raises ParticipantConflict, TransactionEnded, sqlite3.Error."""
        connection, place = self._held()
        execute, number = self._cursor.execute, self._place_number
        try:
            # The witness is released before the first write: a transaction that the application began takes no marks.
            execute("RELEASE linn_effects")
        except sqlite3.OperationalError as error:
            if "no such savepoint" in str(error):
                raise _ended() from error
            raise
        floor = raised_floor(self._floor, floor)
        for mark in marks:
            touching = self._touching(mark)
            parts = applied_parts(mark, self._floor, touching)
            if parts:
                raise conflict(place, mark, parts)
            if not is_below(mark, floor):
                if touching:
                    execute(_DROP_TOUCHING, (number, *_bounds(mark)))
                execute(_ADD_MARK, (number, mark.epoch, *merged_span(mark, touching)))
                self._has_marks = True
        if floor != self._floor:
            execute(_RAISE, (*floor, number))
            if self._has_marks:
                execute(_FORGET, (number, *floor))
        connection.is_held = False
        execute("COMMIT")
        self._place = None

    def _held(self) -> tuple[SqliteHandle, Place]:
        """Return connection and place of the open transaction. Raises TransactionEnded if it is no longer open."""
        assert self._connection is not None, "not open"
        assert self._place is not None, "no transaction was begun"
        if not self._connection.in_transaction:
            raise _ended()
        return self._connection, self._place

    def rollback(self) -> None:
        """Undo the transaction, if one is open. Raises sqlite3.Error if it is called in another thread."""
        connection, self._place = self._connection, None
        if connection is None:
            return
        connection.is_held = False
        try:
            connection.rollback()
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            self._connection = None  # The application closed the connection: `begin` opens another one.

    def close(self) -> None:
        """Roll back the transaction that is open, and close the database."""
        self.rollback()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _bounds(mark: Mark) -> tuple[int, int, int]:
    """Parameters that find the spans which overlap a mark or adjoin it."""
    return mark.epoch, mark.first, mark.end


def _ended() -> TransactionEnded:
    return TransactionEnded("the transaction was ended by the application or by an error of SQLite, without its marks")
