"""The participants for PostgreSQL keep the port's promises, and those of their own, on a real server."""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from database_servers import postgres_server

from linn.errors import ParticipantConflict, TransactionEnded
from linn.participants import AsyncPostgresParticipant, Floor, Mark, PostgresParticipant
from linn.testing.participants import PLACE, ParticipantConformance, ParticipantHarness

NO_FLOOR = Floor(0, 0)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as conninfo:
        yield conninfo


@pytest.fixture
def database(server: str) -> str:
    """Connection string of a schema that is empty but for a table of effects."""
    schema = f"test_{next(_numbers)}"
    conninfo = f"{server} options='-csearch_path={schema}'"
    with psycopg.connect(conninfo) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute("CREATE TABLE effects (text text)")
    return conninfo


def rows(database: str, query: str) -> list[Any]:
    """The first column of a query's rows, read by another connection."""
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute(query.encode())]


def write(handle: psycopg.Connection[Any], text: str) -> None:
    handle.execute("INSERT INTO effects VALUES (%s)", (text,))


async def write_async(handle: psycopg.AsyncConnection[Any], text: str) -> None:
    await handle.execute("INSERT INTO effects VALUES (%s)", (text,))


COUNT = "SELECT (SELECT count(*) FROM linn_places) + (SELECT count(*) FROM linn_marks)"


class TestPostgres(ParticipantConformance):
    @pytest.fixture
    def harness(self, database: str) -> ParticipantHarness:
        return ParticipantHarness(
            make=lambda: PostgresParticipant(database),
            write=write,
            effects=lambda: rows(database, "SELECT text FROM effects"),
            abandon=lambda handle: handle.close(),
            end=lambda handle: handle.execute("COMMIT"),
            stored=lambda: rows(database, COUNT)[0],
        )


class TestAsyncPostgres(ParticipantConformance):
    @pytest.fixture
    def harness(self, database: str) -> ParticipantHarness:
        return ParticipantHarness(
            make=lambda: AsyncPostgresParticipant(database),
            write=write_async,
            effects=lambda: rows(database, "SELECT text FROM effects"),
            abandon=lambda handle: handle.close(),
            end=lambda handle: handle.execute("COMMIT"),
            stored=lambda: rows(database, COUNT)[0],
        )


# --- of its own ------------------------------------------------------------------------------------------------------


@pytest.fixture
def participant(database: str) -> Iterator[PostgresParticipant]:
    participant = PostgresParticipant(database)
    with closing(participant):
        participant.open()
        yield participant


def stored(database: str) -> tuple[list[Any], list[Any]]:
    """Effects, and first offsets of marks."""
    return rows(database, "SELECT text FROM effects"), rows(database, "SELECT first FROM linn_marks")


@pytest.mark.parametrize("call", [lambda handle: handle.commit(), lambda handle: handle.rollback()])
def test_methods_that_would_end_the_transaction_are_refused_and_do_nothing(
    database: str, participant: PostgresParticipant, call: Callable[[psycopg.Connection[Any]], None]
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "once")
    with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
        call(handle)
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert stored(database) == (["once"], [7])


def test_a_transaction_that_the_application_began_itself_takes_no_marks(
    database: str, participant: PostgresParticipant
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "committed by the application")
    handle.execute("COMMIT")
    handle.execute("BEGIN")
    write(handle, "undone")
    with pytest.raises(TransactionEnded):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    assert stored(database) == (["committed by the application"], [])
    assert participant.floor(PLACE) == NO_FLOOR


def test_blocks_of_the_application_are_savepoints(database: str, participant: PostgresParticipant) -> None:
    handle = participant.begin(PLACE)
    with handle.transaction():
        write(handle, "kept")
    with handle.transaction():
        write(handle, "undone")
        raise psycopg.Rollback
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert stored(database) == (["kept"], [7])


def test_an_error_that_the_application_hides_does_not_commit(database: str, participant: PostgresParticipant) -> None:
    handle = participant.begin(PLACE)
    write(handle, "undone")
    with pytest.raises(psycopg.errors.UndefinedTable):
        handle.execute("SELECT * FROM nothing")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    assert stored(database) == ([], [])
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 9))) == []


def test_prepare_finds_a_deferred_constraint_that_is_violated(database: str, participant: PostgresParticipant) -> None:
    handle = participant.begin(PLACE)
    handle.execute("CREATE TABLE whole (text text PRIMARY KEY)")
    handle.execute("CREATE TABLE lines (text text REFERENCES whole DEFERRABLE INITIALLY DEFERRED)")
    participant.commit([], NO_FLOOR)
    handle = participant.begin(PLACE)
    handle.execute("INSERT INTO lines VALUES ('none')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        participant.prepare()
    participant.rollback()
    handle = participant.begin(PLACE)
    handle.execute("INSERT INTO lines VALUES ('some')")
    handle.execute("INSERT INTO whole VALUES ('some')")
    participant.prepare()
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert rows(database, "SELECT text FROM lines") == ["some"]


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_marks_that_a_snapshot_does_not_show_are_not_applied_again(
    database: str, participant: PostgresParticipant, level: psycopg.IsolationLevel
) -> None:
    def set_level(connection: psycopg.Connection[Any]) -> None:
        connection.isolation_level = level

    with closing(PostgresParticipant(database, prepare_connection=set_level)) as other:
        other.open()
        write(other.begin(PLACE), "undone")
        assert list(other.applied(Mark(1, 10, 20))) == []
        write(participant.begin(PLACE), "once")
        participant.commit([Mark(1, 15, 25)], NO_FLOOR)  # The floor stays.
        with pytest.raises((psycopg.errors.SerializationFailure, ParticipantConflict)):
            other.commit([Mark(1, 10, 20)], NO_FLOOR)
        other.rollback()
        assert stored(database) == (["once"], [15])


def test_a_connection_that_the_server_ended_is_made_again(database: str, participant: PostgresParticipant) -> None:
    handle = participant.begin(PLACE)
    write(handle, "undone")
    rows(database, f"SELECT pg_terminate_backend({handle.info.backend_pid}, 10000)")
    with pytest.raises(psycopg.OperationalError):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    write(participant.begin(PLACE), "once")
    assert list(participant.applied(Mark(1, 0, 9))) == []
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert stored(database) == (["once"], [7])


def test_a_connection_that_is_lost_unnoticed_before_the_commit_is_an_error(
    database: str, participant: PostgresParticipant
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "undone")
    handle.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END'"
    )
    handle.execute(
        "CREATE CONSTRAINT TRIGGER last AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    write(handle, "undone, too")
    with pytest.raises(psycopg.OperationalError):
        participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    participant.rollback()
    assert stored(database) == ([], [])
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 9))) == []


def pass_on(listener: socket.socket, path: str) -> None:
    """Connect clients with a server, one after the other; the first one gets no answer to its first COMMIT."""
    for loses in (True, False):
        client, _ = listener.accept()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            has_committed = False
            while ready := select.select([client, server], [], [])[0]:
                received = ready[0].recv(1 << 20)
                if not received or (has_committed and ready[0] is server):
                    break
                has_committed = has_committed or (loses and b"COMMIT" in received)
                (server if ready[0] is client else client).sendall(received)


def test_after_a_commit_whose_answer_is_lost_applied_tells(database: str, participant: PostgresParticipant) -> None:
    """The other participant has made the tables, so that the first COMMIT is that of marks."""
    path = f"{psycopg.conninfo.conninfo_to_dict(database)['host']}/.s.PGSQL.5432"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        between = threading.Thread(target=pass_on, args=[listener, path])
        between.start()
        way = f"host=127.0.0.1 port={listener.getsockname()[1]} sslmode=disable gssencmode=disable"
        with closing(PostgresParticipant(f"{database} {way}")) as other:
            other.open()
            write(other.begin(PLACE), "once")
            with pytest.raises(psycopg.OperationalError):
                other.commit([Mark(1, 7, 8)], NO_FLOOR)
            other.rollback()
            other.begin(PLACE)
            assert list(other.applied(Mark(1, 0, 9))) == [(7, 8)]
        between.join()
    assert stored(database) == (["once"], [7])


def test_adjoining_marks_are_one_row(database: str, participant: PostgresParticipant) -> None:
    commits = [[Mark(3, 5, 7), Mark(3, 2, 5), Mark(3, 7, 8)], [Mark(1, 10, 20)], [Mark(1, 30, 40), Mark(1, 40, 45)]]
    for marks in [*commits, [Mark(2, 20, 30)], [Mark(1, 20, 30)], [Mark(1, 50, 60)], [Mark(1, 5, 10)]]:
        participant.begin(PLACE)
        participant.commit(marks, NO_FLOOR)
    query = "SELECT concat_ws(' ', epoch, first, \"end\") FROM linn_marks ORDER BY 1"
    assert rows(database, query) == ["1 5 45", "1 50 60", "2 20 30", "3 2 8"]


def test_a_place_that_an_operator_deletes_in_a_transaction_is_a_conflict(
    database: str, participant: PostgresParticipant
) -> None:
    write(participant.begin(PLACE), "undone")
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM linn_places")
    with pytest.raises(ParticipantConflict):
        participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    participant.rollback()
    write(participant.begin(PLACE), "once")
    participant.commit([Mark(1, 7, 8)], NO_FLOOR)
    assert stored(database) == (["once"], [7])


def test_tables_that_are_there_need_no_right_to_make_any(database: str, participant: PostgresParticipant) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        schema = rows(database, "SELECT current_schema()")[0]
        connection.execute("DROP ROLE IF EXISTS modest")
        connection.execute("CREATE ROLE modest LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO modest".encode())
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO modest".encode())
        with closing(PostgresParticipant(database.replace("user=linn", "user=modest"))) as modest:
            modest.open()
            write(modest.begin(PLACE), "once")
            modest.commit([Mark(1, 7, 8)], NO_FLOOR)
        connection.execute("DROP OWNED BY modest")
        connection.execute("DROP ROLE modest")
    assert stored(database) == (["once"], [7])


def test_rows_of_the_application_may_have_any_shape(database: str) -> None:
    from psycopg.rows import dict_row

    with closing(PostgresParticipant(database, row_factory=dict_row)) as shaped:
        shaped.open()
        write(shaped.begin(PLACE), "once")
        shaped.commit([Mark(1, 7, 8)], Floor(1, 5))
        handle = shaped.begin(PLACE)
        assert handle.execute("SELECT text FROM effects").fetchall() == [{"text": "once"}]
        assert list(shaped.applied(Mark(1, 0, 9))) == [(0, 5), (7, 8)]
        assert shaped.floor(PLACE) == Floor(1, 5)


def test_a_server_that_is_not_there_is_psycopgs_error() -> None:
    participant = PostgresParticipant("host=nowhere.invalid connect_timeout=2")
    with pytest.raises(psycopg.OperationalError):
        participant.open()
    participant.close()


def test_a_connection_that_can_not_be_prepared_is_closed(database: str) -> None:
    opened: list[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]] = []

    def fail(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        opened.append(connection)
        raise ValueError("no such setting")

    with pytest.raises(ValueError, match="no such setting"):
        PostgresParticipant(database, prepare_connection=fail).open()
    with pytest.raises(ValueError, match="no such setting"):
        asyncio.run(AsyncPostgresParticipant(database, prepare_connection=fail).open())
    assert [connection.closed for connection in opened] == [True, True]


async def test_the_async_one_says_that_trio_is_not_for_it() -> None:
    with pytest.raises(RuntimeError, match="under trio use PostgresParticipant"):
        await AsyncPostgresParticipant().open()


def test_preparing_a_connection_may_be_a_coroutine_function(database: str) -> None:
    async def prepared(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("CREATE TABLE made (text text)")

    async def run() -> None:
        participant = AsyncPostgresParticipant(database, prepare_connection=prepared)
        await participant.open()
        await participant.close()

    asyncio.run(run())
    assert rows(database, "SELECT * FROM made") == []
