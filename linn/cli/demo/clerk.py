"""Clerk process that books payments: `python -m linn.cli.demo.clerk URL TOPIC NAME DATABASE HOW`.

With HOW exactly-once the database takes part in the delivery. With at-least-once the clerk commits, and then acks: that
loses nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence

import anyio
import msgspec

import linn
from linn.cli.demo.bank import Payment, book, make_tables
from linn.cli.exit_code import boundary
from linn.client.client import Client
from linn.participants import SqliteParticipant

PREFETCH = 2_000

_read = msgspec.json.Decoder(Payment).decode


async def work(url: str, topic: str, name: str, database: str, how: str) -> None:
    """Book until killed. Raises LinnError where the topic is gone."""
    async with linn.connect(url) as client:
        if how == "exactly-once":
            await _book_exactly_once(client, topic, name, database)
        else:
            await _book_at_least_once(client, topic, name, database)


async def _book_exactly_once(client: Client, topic: str, name: str, database: str) -> None:
    participant = SqliteParticipant(database, prepare_connection=make_tables)
    async with client.consumer(topic, name=name, exactly_once=participant, prefetch=PREFETCH) as consumer:
        _tell_ready()
        async for message, connection in consumer:
            book(connection, _read(message.value or b""))


async def _book_at_least_once(client: Client, topic: str, name: str, database: str) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    make_tables(connection)
    async with client.consumer(topic, name=name, prefetch=PREFETCH) as consumer:
        _tell_ready()
        async for batch in consumer.batches():
            connection.execute("BEGIN IMMEDIATE")
            for message in batch:
                book(connection, _read(message.value or b""))
            connection.execute("COMMIT")
            batch.ack()


def _tell_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Run a clerk; the process ends with the exit codes of commands."""
    with boundary():
        url, topic, name, database, how = arguments
        anyio.run(work, url, topic, name, database, how, backend="trio")


if __name__ == "__main__":
    main(sys.argv[1:])
