"""`linn ping`: whether a broker answers, and how soon."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="How often to ask.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="How long all of it may take, connecting too.")
]


def ping(count: Count = 1, timeout: Timeout = 5.0, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Connect to a broker, ask it who it is, and print how long the answer took."""
    from linn.cli.pinging import ping_broker

    ping_broker(url, count, timeout, as_json=as_json)
