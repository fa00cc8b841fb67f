"""A program that books records into SQLite, each once, until it is killed: `booking_program.py URL NAME DATABASE`."""

from __future__ import annotations

import sqlite3
import sys

import trio

import linn
from linn.errors import LinnError
from linn.participants import SqliteParticipant


def make_table(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS effects (record INTEGER NOT NULL)")


async def main() -> None:
    url, name, database = sys.argv[1:]
    participant = SqliteParticipant(database, prepare_connection=make_table)
    while True:
        try:
            async with linn.connect(url, request_timeout_s=5) as client:
                async with client.consumer("payments", name=name, prefetch=40, exactly_once=participant) as consumer:
                    async for message, db in consumer:
                        db.execute("INSERT INTO effects VALUES (?)", (int(message.text),))
        except* LinnError:
            await trio.sleep(0.1)


if __name__ == "__main__":
    trio.run(main)
