"""`linn top`: watch a broker on a terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

INTERVAL_S_MIN = 0.1
"""Shortest interval; with a shorter one the readings would be much of the broker's work."""


def _long_enough(interval_s: float) -> float:
    # The option's own bound: not every version of Typer holds NaN against `min`.
    if not interval_s >= INTERVAL_S_MIN:
        raise typer.BadParameter(f"must be {INTERVAL_S_MIN} at least")
    return interval_s


Interval = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", callback=_long_enough, help="Time between two readings."),
]
Once = Annotated[bool, typer.Option("--once", help="Read twice, one interval apart, print the result and end.")]


def top(url: Url = DEFAULT_URL, interval: Interval = 1.0, once: Once = False, as_json: Json = False) -> None:
    """Watch topics, groups, Spark pipelines and connections: rates, depths and lags. Ends with q or Ctrl-C.

    Continues when the broker is restarted. With --json it prints one object per interval and line; in a pipe, one set
    of tables per interval.
    """
    from linn.cli.top_watch import watch

    watch(url, interval_s=interval, once=once, as_json=as_json)
