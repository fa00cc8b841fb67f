"""The participant for SQLite keeps the port's promises, and those of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from linn.errors import TransactionEnded
from linn.participants import Floor, Mark, SqliteParticipant
from linn.testing.participants import PLACE, ParticipantConformance, ParticipantHarness


def made_ready(connection: sqlite3.Connection) -> None:
    """Make the table of effects. Nothing here loses power, so that no commit needs to wait for the disk."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("CREATE TABLE IF NOT EXISTS effects (text TEXT)")


def write(handle: sqlite3.Connection, text: str) -> None:
    handle.execute("INSERT INTO effects VALUES (?)", (text,))


def rows(path: Path, query: str) -> list[object]:
    """The first column of a query's rows, read by another connection."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute(query)]


def harness_of(path: Path, journal_mode: str) -> ParticipantHarness:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal_mode}")
    count = "SELECT (SELECT count(*) FROM linn_places) + (SELECT count(*) FROM linn_marks)"
    return ParticipantHarness(
        make=lambda: SqliteParticipant(path, prepare_connection=made_ready),
        write=write,
        effects=lambda: rows(path, "SELECT text FROM effects"),
        abandon=lambda handle: handle.close(),
        end=lambda handle: handle.execute("COMMIT"),
        stored=lambda: rows(path, count)[0],
        waits=True,
    )


class TestSqliteWithARollbackJournal(ParticipantConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ParticipantHarness:
        return harness_of(tmp_path / "effects.db", "DELETE")


class TestSqliteWithAWriteAheadLog(ParticipantConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ParticipantHarness:
        return harness_of(tmp_path / "effects.db", "WAL")


# --- of its own ------------------------------------------------------------------------------------------------------


@pytest.fixture
def participant(tmp_path: Path) -> Iterator[SqliteParticipant]:
    participant = SqliteParticipant(tmp_path / "effects.db", timeout_s=0, prepare_connection=made_ready)
    participant.open()
    yield participant
    participant.close()


def stored(path: Path) -> tuple[list[object], list[object]]:
    """Effects, and first offsets of marks."""
    return rows(path, "SELECT text FROM effects"), rows(path, "SELECT first FROM linn_marks")


@pytest.mark.parametrize(
    "call",
    [
        lambda handle: handle.commit(),
        lambda handle: handle.rollback(),
        lambda handle: handle.__enter__(),
        lambda handle: handle.executescript("SELECT 1"),
    ],
)
def test_methods_that_would_end_the_transaction_are_refused_and_do_nothing(
    tmp_path: Path, participant: SqliteParticipant, call: Callable[[sqlite3.Connection], object]
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "once")
    with pytest.raises(TransactionEnded):
        call(handle)
    assert handle.in_transaction
    participant.commit([Mark(1, 7, 8)], Floor(0, 0))
    assert stored(tmp_path / "effects.db") == (["once"], [7])
    call(handle)  # Nobody's transaction: harmless.


@pytest.mark.parametrize("begun_again", ["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT linn_other"])
def test_a_transaction_that_the_application_began_itself_takes_no_marks(
    tmp_path: Path, participant: SqliteParticipant, begun_again: str
) -> None:
    handle = participant.begin(PLACE)
    write(handle, "committed by the application")
    handle.execute("COMMIT")
    handle.execute(begun_again)
    write(handle, "undone")
    with pytest.raises(TransactionEnded):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    assert stored(tmp_path / "effects.db") == (["committed by the application"], [])
    assert participant.floor(PLACE) == Floor(0, 0)


def test_an_error_of_sqlite_that_ends_the_transaction_is_noticed(
    tmp_path: Path, participant: SqliteParticipant
) -> None:
    handle = participant.begin(PLACE)
    handle.execute("CREATE UNIQUE INDEX once ON effects (text)")
    write(handle, "once")
    with pytest.raises(sqlite3.IntegrityError):
        handle.execute("INSERT OR ROLLBACK INTO effects VALUES ('once')")
    with pytest.raises(TransactionEnded):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    assert stored(tmp_path / "effects.db") == ([], [])


def test_savepoints_of_the_application_are_its_own(tmp_path: Path, participant: SqliteParticipant) -> None:
    handle = participant.begin(PLACE)
    for name, end in (("undone", "ROLLBACK TO mine"), ("kept", "RELEASE mine")):
        handle.execute("SAVEPOINT mine")
        write(handle, name)
        handle.execute(end)
    participant.commit([Mark(1, 7, 8)], Floor(0, 0))
    assert stored(tmp_path / "effects.db") == (["kept"], [7])


def test_a_deferred_constraint_fails_the_commit_and_stores_nothing(
    tmp_path: Path, participant: SqliteParticipant
) -> None:
    handle = participant.begin(PLACE)
    handle.execute("CREATE TABLE lines (text TEXT REFERENCES whole (text) DEFERRABLE INITIALLY DEFERRED)")
    handle.execute("CREATE TABLE whole (text TEXT PRIMARY KEY)")
    participant.commit([], Floor(0, 0))
    handle.execute("PRAGMA foreign_keys = ON")
    handle = participant.begin(PLACE)
    write(handle, "undone")
    handle.execute("INSERT INTO lines VALUES ('none')")
    with pytest.raises(sqlite3.IntegrityError):
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
    participant.rollback()
    assert stored(tmp_path / "effects.db") == ([], [])
    participant.begin(PLACE)
    assert list(participant.applied(Mark(1, 0, 9))) == []


def test_rows_of_the_application_may_have_any_shape(tmp_path: Path) -> None:
    def shaped(connection: sqlite3.Connection) -> None:
        made_ready(connection)
        connection.row_factory = lambda cursor, row: {"values": row}
        connection.text_factory = bytes

    participant = SqliteParticipant(tmp_path / "effects.db", prepare_connection=shaped)
    with closing(participant):
        participant.open()
        write(participant.begin(PLACE), "é")
        participant.commit([Mark(1, 7, 8)], Floor(1, 5))
        handle = participant.begin(PLACE)
        assert handle.execute("SELECT text FROM effects").fetchall() == [{"values": ("é".encode(),)}]
        assert list(participant.applied(Mark(1, 0, 9))) == [(0, 5), (7, 8)]
        assert participant.floor(PLACE) == Floor(1, 5)


def test_a_lock_is_waited_for_as_long_as_asked(tmp_path: Path, participant: SqliteParticipant) -> None:
    other = SqliteParticipant(tmp_path / "effects.db", timeout_s=0, prepare_connection=made_ready)
    with closing(other):
        other.open()
        write(participant.begin(PLACE), "first")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.begin(PLACE)
        other.rollback()
        participant.commit([Mark(1, 0, 1)], Floor(0, 0))
        write(other.begin(PLACE), "second")
        other.commit([Mark(1, 1, 2)], Floor(0, 0))
        assert stored(tmp_path / "effects.db") == (["first", "second"], [0])


def test_commits_survive_a_power_failure_unless_the_application_chose_otherwise(
    tmp_path: Path, participant: SqliteParticipant
) -> None:
    def level(handle: sqlite3.Connection) -> object:
        return handle.execute("PRAGMA synchronous").fetchone()[0]

    def was_lowered(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        return connection

    with closing(was_lowered(tmp_path / "other.db")), closing(SqliteParticipant(tmp_path / "other.db")) as careful:
        careful.open()
        assert level(careful.begin(PLACE)) == 2
    assert level(participant.begin(PLACE)) == 0


def test_adjoining_marks_are_one_row(tmp_path: Path, participant: SqliteParticipant) -> None:
    commits = [
        [Mark(3, 5, 7), Mark(3, 2, 5), Mark(3, 7, 8)],
        [Mark(1, 10, 20)],
        [Mark(1, 30, 40), Mark(1, 40, 45)],
        [Mark(2, 20, 30)],
        [Mark(1, 20, 30)],
    ]
    for marks in [*commits, [Mark(1, 50, 60)], [Mark(1, 5, 10)]]:
        participant.begin(PLACE)
        participant.commit(marks, Floor(0, 0))
    query = "SELECT epoch || ' ' || first || ' ' || \"end\" FROM linn_marks ORDER BY 1"
    assert rows(tmp_path / "effects.db", query) == ["1 5 45", "1 50 60", "2 20 30", "3 2 8"]


def test_a_delivery_takes_few_statements(participant: SqliteParticipant) -> None:
    statements: list[str] = []
    for first in (0, 500):
        handle = participant.begin(PLACE)
        handle.set_trace_callback(statements.append)
        statements.clear()
        participant.applied(Mark(1, first, first + 500))
        participant.commit([Mark(1, first, first + 500)], Floor(1, first + 500))
        participant.begin(PLACE)
        participant.rollback()
    words = [statement.split()[0] for statement in statements]
    assert words == ["RELEASE", "UPDATE", "COMMIT", "BEGIN", "SELECT", "SAVEPOINT", "ROLLBACK"]


def test_a_connection_that_can_not_be_prepared_is_closed(tmp_path: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def fail(connection: sqlite3.Connection) -> None:
        opened.append(connection)
        raise ValueError("no such setting")

    with pytest.raises(ValueError, match="no such setting"):
        SqliteParticipant(tmp_path / "effects.db", prepare_connection=fail).open()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_a_file_that_is_no_database_is_refused_with_sqlites_error(tmp_path: Path) -> None:
    (tmp_path / "effects.db").write_bytes(b"not a database, and longer than a header of one is" * 20)
    participant = SqliteParticipant(tmp_path / "effects.db")
    with pytest.raises(sqlite3.DatabaseError):
        participant.open()
    participant.close()
