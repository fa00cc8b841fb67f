"""`linn demo`: a year of flights through a broker that is killed on the way."""

from __future__ import annotations

from typing import Annotated

import typer

Flights = Annotated[
    int | None,
    typer.Option("--flights", min=5000, metavar="COUNT", help="Number of flights, instead of all."),
]


def demo(flights: Flights = None) -> None:
    """Publish the 336,776 flights of a year, kill a consumer and the broker on the way, and check every count.

    Starts its own broker in a temporary folder. Ends with 1 if one count is off.
    """
    from linn.cli.demo.run import run_demo

    if not run_demo(flights):
        raise typer.Exit(1)
