"""`linn top`: a broker at work, on a terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

INTERVAL_S_MIN = 0.1
"""Below it, looking would be much of what there is to see."""


def _long_enough(interval_s: float) -> float:
    # The option's own bound: not every version of Typer holds NaN against `min`.
    if not interval_s >= INTERVAL_S_MIN:
        raise typer.BadParameter(f"must be {INTERVAL_S_MIN} at least")
    return interval_s


Interval = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", callback=_long_enough, help="How often to look."),
]
Once = Annotated[bool, typer.Option("--once", help="Look twice, one interval apart, print that and end.")]


def top(url: Url = DEFAULT_URL, interval: Interval = 1.0, once: Once = False, as_json: Json = False) -> None:
    """Watch topics, groups and connections: rates, depths and lags. Ends with q or Ctrl-C.

    It goes on when the broker is restarted. With --json it prints one object per interval and line; in a pipe, tables
    one below the other.
    """
    from linn.cli.top_watch import watch

    watch(url, interval_s=interval, once=once, as_json=as_json)
