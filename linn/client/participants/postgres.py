"""PostgresParticipant and AsyncPostgresParticipant: effects in a PostgreSQL database, through psycopg.

Laws: the statements are written once, as generators that yield queries and are sent rows; the two classes run them. The
commit locks the row of its place before it reads the marks, and changes that row, so that at any isolation level the
later of two transactions for a place sees the marks of the earlier one, or fails. A transaction-local setting proves
that the application did not end the transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from linn.client.participants.driver import require_driver
from linn.client.participants.participant import NO_FLOOR, Floor, Mark, Place
from linn.client.participants.spans import Span, applied_parts, planned_change, raised_floor
from linn.core.errors.tree import ParticipantConflict, TransactionEnded

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
Steps = Generator[tuple[str, Sequence[object]], list[Any], T]
"""Queries with their parameters; each is answered with its rows."""

_LOCK = 0x6C696E6E
"""Advisory lock under which tables are made: `CREATE TABLE IF NOT EXISTS` can fail if two processes run it."""
_TABLES = (
    """CREATE TABLE IF NOT EXISTS linn_places (
        place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        reader text NOT NULL,
        floor_epoch bigint NOT NULL DEFAULT 0,
        floor_offset bigint NOT NULL DEFAULT 0,
        UNIQUE (topic_id, partition, reader)
    )""",
    """CREATE TABLE IF NOT EXISTS linn_marks (
        place bigint NOT NULL,
        epoch bigint NOT NULL,
        first bigint NOT NULL,
        "end" bigint NOT NULL,
        PRIMARY KEY (place, epoch, "end")
    )""",
)
_OF_PLACE = "topic_id = %s AND partition = %s AND reader = %s"
_WITNESS = "current_setting('linn.transaction', true) IS NOT DISTINCT FROM 'open'"
_ADD_PLACE = "INSERT INTO linn_places (topic_id, partition, reader) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_FLOOR = f"SELECT floor_epoch, floor_offset FROM linn_places WHERE {_OF_PLACE}"
_BEGIN = "SELECT set_config('linn.transaction', 'open', true)"
_APPLIED = f"""SELECT {_WITNESS}, floor_epoch, floor_offset, ARRAY (
        SELECT ARRAY[first, "end"] FROM linn_marks WHERE linn_marks.place = linn_places.place
        AND epoch = %s AND "end" >= %s AND first <= %s
    ) FROM linn_places WHERE {_OF_PLACE}"""
_LOCKED = f"SELECT {_WITNESS}, place, floor_epoch, floor_offset FROM linn_places WHERE {_OF_PLACE} FOR UPDATE"
_STORED = 'SELECT epoch, first, "end" FROM linn_marks WHERE place = %s AND "end" >= %s AND first <= %s'
_RAISE = """WITH forgotten AS (DELETE FROM linn_marks WHERE place = %s AND epoch <= %s AND "end" <= %s)
    UPDATE linn_places SET floor_epoch = %s, floor_offset = %s WHERE place = %s"""
_REMOVE = """DELETE FROM linn_marks USING unnest(%s::bigint[], %s::bigint[]) AS gone (epoch, "end")
    WHERE place = %s AND linn_marks.epoch = gone.epoch AND linn_marks."end" = gone."end" """
_ADD = "INSERT INTO linn_marks SELECT %s, * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])"


class PostgresParticipant:
    """Effects in a PostgreSQL database, for blocking programs. The handle is the `psycopg.Connection`.

    `prepare_connection` is called with each new connection, outside a transaction.

    Example:
        participant = PostgresParticipant("postgresql:///shop")
    """

    def __init__(
        self,
        conninfo: str = "",
        *,
        prepare_connection: Callable[[psycopg.Connection[Any]], object] | None = None,
        **options: Any,
    ) -> None:
        require_driver("psycopg", "PostgresParticipant", "postgres")
        self._conninfo, self._options = conninfo, options
        self._prepare_connection = prepare_connection
        self._connection: psycopg.Connection[Any] | None = None
        self._transaction: psycopg.Transaction | None = None
        self._cursor: psycopg.Cursor[Any]
        self._marks = _MarkStatements()

    def open(self) -> None:
        """Connect, and make the two tables where they are missing. Raises psycopg.Error."""
        self._run(_missing_tables_made(), self._connect())

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg.rows import tuple_row

        if self._connection is None:
            connection = psycopg.connect(self._conninfo, autocommit=True, **self._options)
            try:
                if self._prepare_connection is not None:
                    self._prepare_connection(connection)
                self._cursor = psycopg.Cursor(connection, row_factory=tuple_row)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _run(self, steps: Steps[T], connection: psycopg.Connection[Any]) -> T:
        """Run queries on an open connection."""
        rows: Any = None
        while True:
            try:
                query, parameters = steps.send(rows)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            self._cursor.execute(query, parameters or None)
            rows = self._cursor.fetchall() if self._cursor.description is not None else []

    def floor(self, place: Place) -> Floor:
        """The floor of a place; `NO_FLOOR` if nothing was ever committed. Raises psycopg.Error."""
        return self._run(_floor(place), self._connect())

    def begin(self, place: Place) -> psycopg.Connection[Any]:
        """Begin a transaction, on a new connection where the last one was lost. Raises psycopg.Error."""
        import psycopg

        connection = self._connect()
        self._run(self._marks.known(place), connection)
        transaction = psycopg.Transaction(connection)
        transaction.__enter__()
        self._transaction = transaction
        self._run(self._marks.begin(place), connection)
        return connection

    def applied(self, mark: Mark) -> Sequence[Span]:
        """The parts of a mark that had their effect already. Raises psycopg.Error, TransactionEnded."""
        return self._run(self._marks.applied(mark), self._connect())

    def prepare(self) -> None:
        """Check the deferred constraints now. Raises psycopg.Error, TransactionEnded."""
        self._run(self._marks.prepare(), self._connect())

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Commit effects, marks and floor. Raises ParticipantConflict, TransactionEnded, psycopg.Error."""
        self._run(self._marks.commit(marks, floor), self._connect())
        transaction, self._transaction = self._transaction, None
        assert transaction is not None, "no transaction was begun"
        transaction.__exit__(None, None, None)
        _check_committed(transaction)

    def rollback(self) -> None:
        """Undo the transaction, if one is open. A connection that is lost or in disorder is closed."""
        import psycopg

        connection, transaction = self._connection, self._transaction
        self._transaction = None
        self._marks = _MarkStatements()
        if connection is None:
            return
        if transaction is not None:
            with contextlib.suppress(psycopg.Error):
                transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        if not _is_idle(connection):
            connection.close()
            self._connection = None

    def close(self) -> None:
        """Roll back the transaction that is open, and disconnect."""
        self.rollback()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class AsyncPostgresParticipant:
    """Effects in a PostgreSQL database, for programs under asyncio. The handle is the `psycopg.AsyncConnection`.

    psycopg does not run under trio: there use `PostgresParticipant`. `prepare_connection` is called with each new
    connection, outside a transaction, and may be a coroutine function.

    Example:
        participant = AsyncPostgresParticipant("postgresql:///shop")
    """

    def __init__(
        self,
        conninfo: str = "",
        *,
        prepare_connection: Callable[[psycopg.AsyncConnection[Any]], Awaitable[object] | object] | None = None,
        **options: Any,
    ) -> None:
        require_driver("psycopg", "AsyncPostgresParticipant", "postgres")
        self._conninfo, self._options = conninfo, options
        self._prepare_connection = prepare_connection
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._transaction: psycopg.AsyncTransaction | None = None
        self._cursor: psycopg.AsyncCursor[Any]
        self._marks = _MarkStatements()

    async def open(self) -> None:
        """Connect, and make the two tables where they are missing. Raises psycopg.Error; RuntimeError under trio."""
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            raise RuntimeError("psycopg runs under asyncio only: under trio use PostgresParticipant") from error
        await self._run(_missing_tables_made(), await self._connect())

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        import psycopg
        from psycopg.rows import tuple_row

        if self._connection is None:
            connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True, **self._options)
            try:
                if self._prepare_connection is not None:
                    prepared = self._prepare_connection(connection)
                    if inspect.isawaitable(prepared):
                        await prepared
                self._cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _run(self, steps: Steps[T], connection: psycopg.AsyncConnection[Any]) -> T:
        """Run queries on an open connection."""
        rows: Any = None
        while True:
            try:
                query, parameters = steps.send(rows)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            await self._cursor.execute(query, parameters or None)
            rows = await self._cursor.fetchall() if self._cursor.description is not None else []

    async def floor(self, place: Place) -> Floor:
        """The floor of a place; `NO_FLOOR` if nothing was ever committed. Raises psycopg.Error."""
        return await self._run(_floor(place), await self._connect())

    async def begin(self, place: Place) -> psycopg.AsyncConnection[Any]:
        """Begin a transaction, on a new connection where the last one was lost. Raises psycopg.Error."""
        import psycopg

        connection = await self._connect()
        await self._run(self._marks.known(place), connection)
        transaction = psycopg.AsyncTransaction(connection)
        await transaction.__aenter__()
        self._transaction = transaction
        await self._run(self._marks.begin(place), connection)
        return connection

    async def applied(self, mark: Mark) -> Sequence[Span]:
        """The parts of a mark that had their effect already. Raises psycopg.Error, TransactionEnded."""
        return await self._run(self._marks.applied(mark), await self._connect())

    async def prepare(self) -> None:
        """Check the deferred constraints now. Raises psycopg.Error, TransactionEnded."""
        await self._run(self._marks.prepare(), await self._connect())

    async def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Commit effects, marks and floor. Raises ParticipantConflict, TransactionEnded, psycopg.Error."""
        await self._run(self._marks.commit(marks, floor), await self._connect())
        transaction, self._transaction = self._transaction, None
        assert transaction is not None, "no transaction was begun"
        await transaction.__aexit__(None, None, None)
        _check_committed(transaction)

    async def rollback(self) -> None:
        """Undo the transaction, if one is open. A connection that is lost or in disorder is closed."""
        import psycopg

        connection, transaction = self._connection, self._transaction
        self._transaction = None
        self._marks = _MarkStatements()
        if connection is None:
            return
        if transaction is not None:
            with contextlib.suppress(psycopg.Error):
                await transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
        if not _is_idle(connection):
            self._connection = None
            await connection.close()

    async def close(self) -> None:
        """Roll back the transaction that is open, and disconnect."""
        await self.rollback()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _check_committed(transaction: psycopg.Transaction | psycopg.AsyncTransaction) -> None:
    """Raise if psycopg silently skipped the commit, because the connection was lost before COMMIT was sent."""
    import psycopg

    if transaction.status is not transaction.Status.COMMITTED:
        raise psycopg.OperationalError("the connection was lost before the commit")


def _is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection is open and in no transaction."""
    from psycopg.pq import TransactionStatus

    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


# --- statements ------------------------------------------------------------------------------------------------------


def _missing_tables_made() -> Steps[None]:
    """Make the tables. If they exist, no right to create tables is needed."""
    rows = yield "SELECT to_regclass('linn_places') IS NULL OR to_regclass('linn_marks') IS NULL", ()
    if not rows[0][0]:
        return
    yield "BEGIN", ()
    yield "SELECT pg_advisory_xact_lock(%s)", (_LOCK,)
    for table in _TABLES:
        yield table, ()
    yield "COMMIT", ()


def _floor(place: Place) -> Steps[Floor]:
    rows = yield _FLOOR, place
    return Floor(*rows[0]) if rows else NO_FLOOR


class _MarkStatements:
    """Statements for marks, and the place of the transaction."""

    def __init__(self) -> None:
        self._place: Place
        self._known: dict[Place, bool] = {}

    def known(self, place: Place) -> Steps[None]:
        """Make the row of a place, outside the transaction, as others would wait for the end of one."""
        if place not in self._known:
            yield _ADD_PLACE, place
            self._known[place] = True

    def begin(self, place: Place) -> Steps[None]:
        """Set the witness in the transaction."""
        self._place = place
        yield _BEGIN, ()

    def applied(self, mark: Mark) -> Steps[list[Span]]:
        """Ask for the stored parts of a mark, at this moment."""
        rows = yield _APPLIED, (mark.epoch, mark.first, mark.end, *self._place)
        witness, epoch, offset, spans = self._one(rows)
        _check_witness(witness)
        return applied_parts(mark, Floor(epoch, offset), ((first, end) for first, end in spans))

    def prepare(self) -> Steps[None]:
        """Have the deferred constraints checked."""
        rows = yield f"SELECT {_WITNESS}", ()
        _check_witness(rows[0][0])
        yield "SET CONSTRAINTS ALL IMMEDIATE", ()

    def commit(self, marks: Sequence[Mark], floor: Floor) -> Steps[None]:
        """Lock the place, and write marks and floor unless marks are stored already."""
        rows = yield _LOCKED, self._place
        witness, number, epoch, offset = self._one(rows)
        _check_witness(witness)
        now = Floor(epoch, offset)
        floor = raised_floor(now, floor)
        stored: list[Mark] = []
        if marks:
            first, end = min(mark.first for mark in marks), max(mark.end for mark in marks)
            stored = [Mark(*row) for row in (yield _STORED, (number, first, end))]
        removed, added = planned_change(self._place, marks, now, floor, stored)
        # Even if the floor stays: a transaction with an older snapshot must fail when it locks this row.
        yield _RAISE, (number, *floor, *floor, number)
        if removed:
            yield _REMOVE, ([row.epoch for row in removed], [row.end for row in removed], number)
        if added:
            yield _ADD, (number, *(list(column) for column in zip(*added, strict=True)))

    def _one(self, rows: list[Any]) -> Any:
        """Return the row of the place."""
        if not rows:
            raise ParticipantConflict(f"the row of {self._place} in linn_places was deleted meanwhile")
        return rows[0]


def _check_witness(witness: bool) -> None:
    if not witness:
        raise TransactionEnded("the transaction was ended by the application, without its marks")
