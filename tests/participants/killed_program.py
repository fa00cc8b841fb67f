"""A program that applies records through a participant until it is killed: `killed_program.py KIND WHERE`.

It writes a byte before and after each step, and begins where the participant's floor says. Of each ten records the
last five come first, so that there is a mark above the floor half of the time.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from typing import IO, Any
from uuid import UUID

from linn.participants import (
    FileParticipant,
    Floor,
    Mark,
    Participant,
    Place,
    PostgresParticipant,
    RedisParticipant,
    SqliteParticipant,
)

PLACE = Place(UUID(int=5), 2, "killed")
Write = Callable[[Any, int], object]
TABLE = "CREATE TABLE IF NOT EXISTS effects (record INTEGER)"


def files_in(where: str) -> tuple[Participant[Any], Write]:
    def write(handle: IO[bytes], record: int) -> None:
        handle.write(b"%d\n" % record)
        handle.flush()

    return FileParticipant(where, suffix=".txt"), write


def postgres_in(where: str) -> tuple[Participant[Any], Write]:
    participant = PostgresParticipant(where, prepare_connection=lambda connection: connection.execute(TABLE))
    return participant, lambda handle, record: handle.execute("INSERT INTO effects VALUES (%s)", (record,))


def redis_in(where: str) -> tuple[Participant[Any], Write]:
    return RedisParticipant(where), lambda handle, record: handle.rpush("effects", record)


def sqlite_in(where: str) -> tuple[Participant[Any], Write]:
    def made_ready(connection: sqlite3.Connection) -> None:
        connection.execute(TABLE)

    def write(handle: sqlite3.Connection, record: int) -> None:
        handle.execute("INSERT INTO effects VALUES (?)", (record,))

    return SqliteParticipant(f"{where}/effects.db", prepare_connection=made_ready), write


KINDS: dict[str, Callable[[str], tuple[Participant[Any], Write]]] = {
    "files": files_in,
    "postgres": postgres_in,
    "redis": redis_in,
    "sqlite": sqlite_in,
}


def step(name: bytes) -> None:
    os.write(1, name)


def apply(participant: Participant[Any], write: Write, mark: Mark, floor: Floor) -> None:
    """Give the records of a mark their effect, unless they have it."""
    step(b"b")
    handle = participant.begin(PLACE)
    if participant.applied(mark):
        participant.rollback()
        return
    for record in range(mark.first, mark.end):
        step(b"w")
        write(handle, record)
    participant.prepare()
    step(b"c")
    participant.commit([mark], floor)
    step(b"d")


def main() -> None:
    participant, write = KINDS[sys.argv[1]](sys.argv[2])
    participant.open()
    offset = participant.floor(PLACE).offset
    while True:
        apply(participant, write, Mark(1, offset + 5, offset + 10), Floor(1, offset))
        apply(participant, write, Mark(1, offset, offset + 5), Floor(1, offset + 10))
        offset += 10


if __name__ == "__main__":
    main()
