"""A program that books records, each once, until it is killed: `booking_program.py URL NAME DATABASE`.

The database is a file of SQLite, or how to connect with PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from typing import Any

import trio

import linn
from linn.errors import LinnError
from linn.participants import PostgresParticipant, SqliteParticipant

OUTAGE_S = 0.1


def make_table(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS effects (record INTEGER NOT NULL, at_ns INTEGER NOT NULL)")


async def book(url: str, name: str, participant: Any, statement: str) -> None:
    while True:
        try:
            async with linn.connect(url, request_timeout_s=5) as client:
                async with client.consumer("payments", name=name, prefetch=40, exactly_once=participant) as consumer:
                    async for message, db in consumer:
                        db.execute(statement, (int(message.text), time.time_ns()))
        except* LinnError:
            await trio.sleep(OUTAGE_S)


if __name__ == "__main__":
    url, name, database = sys.argv[1:]
    if "host=" in database:
        trio.run(book, url, name, PostgresParticipant(database), "INSERT INTO effects VALUES (%s, %s)")
    else:
        participant = SqliteParticipant(database, prepare_connection=make_table)
        trio.run(book, url, name, participant, "INSERT INTO effects VALUES (?, ?)")
