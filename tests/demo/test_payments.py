"""The demo's bank: payments are the same in each run, and whatever is booked twice, lost or wrong shows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from linn.cli.demo.bank import Books, Payment, balances, book, booked_count, make_tables, payments, read_books
from linn.cli.demo.banking import counts_of_books, wrong_accounts

LIMIT = 300


def booked(path: Path, each: list[Payment]) -> Books:
    with closing(sqlite3.connect(path)) as connection:
        make_tables(connection)
        for payment in each:
            book(connection, payment)
        connection.commit()
        assert booked_count(connection, len(each) + 1) == len(each)
        assert booked_count(connection, len(each)) == len({payment.number for payment in each})
    return read_books(path)


def wrong(books: Books) -> list[str]:
    return [count.what for count in counts_of_books(books, LIMIT) if not count.right]


def test_payments_are_the_same_each_time_and_no_cent_comes_from_nowhere() -> None:
    made = list(payments(LIMIT))
    assert made == list(payments(LIMIT))
    assert len({payment.number for payment in made}) == LIMIT
    assert all(0 < payment.cents <= 50_000 and payment.payer != payment.payee for payment in made)
    assert sum(balances(LIMIT).values()) == 0


def test_books_of_every_payment_once_are_right(tmp_path: Path) -> None:
    assert wrong(booked(tmp_path / "bank.db", list(payments(LIMIT)))) == []


def one_twice(each: list[Payment]) -> None:
    each.append(each[7])


def one_missing(each: list[Payment]) -> None:
    del each[7]


def one_instead_of_another(each: list[Payment]) -> None:
    each[7] = each[8]


def one_cent_more(each: list[Payment]) -> None:
    each[7] = Payment(7, each[7].payer, each[7].payee, each[7].cents + 1)


@pytest.mark.parametrize("slip", [one_twice, one_missing, one_instead_of_another, one_cent_more])
def test_a_payment_that_is_wrong_shows(tmp_path: Path, slip: Callable[[list[Payment]], None]) -> None:
    each = list(payments(LIMIT))
    slip(each)
    books = booked(tmp_path / "bank.db", each)
    assert "payments: accounts that are off by a cent or more" in wrong(books)
    assert wrong_accounts(books.balances, balances(LIMIT))
