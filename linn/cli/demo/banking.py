"""Banking: the act in which money is moved exactly once, while clerks and broker are killed.

Two clerks, processes of their own, book payments from a queue into one SQLite database. At fixed shares of the work one
of them, or the broker, is killed with SIGKILL and started again. Then the same is done with a queue that delivers at
least once, to show how many payments would have been booked twice.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

import linn
from linn.cli.demo.bank import Books, Payment, balances, booked_count, make_tables, payments, read_books
from linn.cli.demo.progress import Stretch
from linn.cli.demo.tally import Count
from linn.cli.demo.view import View
from linn.testing.process import BrokerProcess

CLERKS = 2
KILLS: tuple[tuple[float, int | None], ...] = ((0.15, 0), (0.3, None), (0.45, 1), (0.6, None), (0.75, 0), (0.85, 1))
"""Shares of the work at which a process is killed: a clerk, by number, or the broker (None)."""
SILENCE_S = 20.0
"""Time without a booking after which the rest counts as missing."""
_LOOK_S = 0.001
"""Polling interval of the database: short, so that a kill comes soon after a commit, when it does most harm."""
_CHUNK = 2_000

How = Literal["exactly-once", "at-least-once"]
_encode = msgspec.json.Encoder().encode


class Clerk:
    """A clerk's process."""

    def __init__(self, number: int, url: str, topic: str, database: Path, how: How) -> None:
        self._command = [url, topic, f"clerk-{number + 1}", str(database), how]
        self._errors = database.parent / f"clerk-{number + 1}.log"
        self._process: anyio.abc.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it has subscribed."""
        command = [sys.executable, "-m", "linn.cli.demo.clerk", *self._command]
        with self._errors.open("ab") as errors:
            self._process = await anyio.open_process(
                command, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        assert self._process.stdout is not None
        await self._process.stdout.receive()

    async def kill(self) -> None:
        """Kill it, and wait for its end. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()


class Banking:
    """One run of the act."""

    def __init__(self, broker: BrokerProcess, folder: Path, limit: int, view: View) -> None:
        self._broker = broker
        self._folder = folder
        self._limit = limit
        self._view = view

    async def run(self, topic: str, how: How, stretch: Stretch) -> Books:
        """Publish the payments, have them booked, and kill on the way; return the books.

        Raises LinnError. Cancellation: the clerks are killed.
        """
        database = self._folder / f"{how}.db"
        async with linn.connect(self._broker.url, name="linn-demo") as client:
            await self._publish(client, topic)
        clerks = [Clerk(number, self._broker.url, topic, database, how) for number in range(CLERKS)]
        stretch.expected = self._limit
        stretch.start()
        try:
            for clerk in clerks:
                await clerk.start()
            await self._until_booked(database, clerks, stretch)
        finally:
            with anyio.CancelScope(shield=True):
                for clerk in clerks:
                    await clerk.kill()
        stretch.end()
        return await anyio.to_thread.run_sync(read_books, database)

    async def _publish(self, client: linn.client.Client, topic: str) -> None:
        async with client.producer(topic) as producer:
            chunk: list[Payment] = []
            for payment in payments(self._limit):
                chunk.append(payment)
                if len(chunk) == _CHUNK:
                    await producer.publish_many(list(map(_encode, chunk)))
                    chunk.clear()
            if chunk:
                await producer.publish_many(list(map(_encode, chunk)))

    async def _until_booked(self, database: Path, clerks: list[Clerk], stretch: Stretch) -> None:
        kills = list(KILLS)
        with closing(sqlite3.connect(database)) as connection:
            make_tables(connection)
            while stretch.done < self._limit:
                before = stretch.done
                with anyio.move_on_after(SILENCE_S):
                    while stretch.done == before:
                        await anyio.sleep(_LOOK_S)
                        stretch.done = booked_count(connection, self._limit)
                if stretch.done == before:
                    self._view.say(f"the queue stands still at {before:,} of {self._limit:,}")
                    return
                if kills and stretch.done >= kills[0][0] * self._limit:
                    await self._kill(kills.pop(0)[1], clerks, stretch.done)

    async def _kill(self, clerk: int | None, clerks: list[Clerk], done: int) -> None:
        who = "the broker" if clerk is None else f"clerk {clerk + 1}"
        self._view.say(f"SIGKILL to {who} after {done:,} payments")
        if clerk is None:
            self._broker.kill()
            await anyio.to_thread.run_sync(self._broker.start)
        else:
            await clerks[clerk].kill()
            await clerks[clerk].start()


def counts_of_books(books: Books, limit: int) -> list[Count]:
    """Return the counts of the final table."""
    expected = balances(limit)
    return [
        Count("payments: booked", limit, books.payments),
        Count("payments: booked more than once", 0, books.booked - books.payments),
        Count("payments: accounts", len(expected), len(books.balances)),
        Count("payments: accounts that are off by a cent or more", 0, len(wrong_accounts(books.balances, expected))),
        Count("payments: cents that came from nowhere", 0, sum(books.balances.values())),
    ]


def wrong_accounts(found: Counter[str], expected: Counter[str]) -> list[str]:
    """List the accounts whose balance is wrong."""
    return [name for name in sorted({*found, *expected}) if found[name] != expected[name]]
