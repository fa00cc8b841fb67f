"""The bank: accounts and bookings in a SQLite database."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from linn.cli.demo.flights import rows

PAYMENTS_MAX = 100_000
CENTS_MAX = 50_000


class Payment(msgspec.Struct, frozen=True, gc=False):
    """A payment from a carrier to an airport."""

    number: int
    payer: str
    payee: str
    cents: int


def payments(limit: int) -> Iterator[Payment]:
    """Yield the payments of the first flights, at most `limit`. Raises FlightsMissing."""
    for number, row in enumerate(rows(limit)):
        yield Payment(number, f"carrier {row.carrier}", f"airport {row.dest}", 1 + int(row.flight) * 7_919 % CENTS_MAX)


def balances(limit: int) -> Counter[str]:
    """Return the cents of each account once every payment was booked. Raises FlightsMissing."""
    found: Counter[str] = Counter()
    for payment in payments(limit):
        found[payment.payer] -= payment.cents
        found[payment.payee] += payment.cents
    return found


_MOVE = "INSERT INTO accounts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET cents = cents + excluded.cents"


class Books(NamedTuple):
    """Contents of a bank's database."""

    booked: int
    """Number of bookings."""
    payments: int
    """Number of payments that were booked at least once."""
    balances: Counter[str]


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of the bank, and set what every connection needs. Raises sqlite3.Error."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL)")
    connection.execute("CREATE TABLE IF NOT EXISTS bookings (payment INTEGER NOT NULL)")


def book(connection: sqlite3.Connection, payment: Payment) -> None:
    """Move the money, in the open transaction. A payment that is delivered twice would be booked twice."""
    connection.execute(_MOVE, (payment.payer, -payment.cents))
    connection.execute(_MOVE, (payment.payee, payment.cents))
    connection.execute("INSERT INTO bookings VALUES (?)", (payment.number,))


def booked_count(connection: sqlite3.Connection, enough: int) -> int:
    """Return the number of bookings, or if these are enough, of payments that were booked at least once."""
    found: int = connection.execute("SELECT coalesce(max(rowid), 0) FROM bookings").fetchone()[0]
    if found < enough:
        return found
    found = connection.execute("SELECT count(DISTINCT payment) FROM bookings").fetchone()[0]
    return found


def read_books(path: Path) -> Books:
    """Read everything. Raises sqlite3.Error."""
    with closing(sqlite3.connect(path)) as connection:
        booked, distinct = connection.execute("SELECT count(*), count(DISTINCT payment) FROM bookings").fetchone()
        return Books(booked, distinct, Counter(dict(connection.execute("SELECT name, cents FROM accounts"))))
