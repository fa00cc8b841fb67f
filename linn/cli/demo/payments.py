"""Payments that are made of flights: who pays whom, and how many cents. The same flights make the same payments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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
