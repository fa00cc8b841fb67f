"""`linn top`: a broker at work, on a terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

INTERVAL_S_MIN = 0.1
"""Below it, looking would be much of what there is to see."""

Interval = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", min=INTERVAL_S_MIN, help="How often to look."),
]
Once = Annotated[bool, typer.Option("--once", help="Look twice, one interval apart, print that and end.")]


def top(url: Url = DEFAULT_URL, interval: Interval = 1.0, once: Once = False, as_json: Json = False) -> None:
    """Watch topics, groups and connections: rates, depths and lags. Ends with q or Ctrl-C.

    It goes on when the broker is restarted. With --json it prints one object per interval and line; in a pipe, tables
    one below the other.
    """
    from linn.cli.top_watch import watch

    watch(url, interval_s=interval, once=once, as_json=as_json)
