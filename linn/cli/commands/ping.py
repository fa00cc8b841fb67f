"""`linn ping`: round trip times to a broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.session import with_client
from linn.core.errors.texts import one_line

if TYPE_CHECKING:
    from linn.client.client import Client

Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="Number of requests.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Time limit for all of it, with connecting.")
]


def ping(count: Count = 1, timeout: Timeout = 5.0, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Connect to a broker, and print its name, its version and the round trip time of each request."""

    async def ask(client: Client) -> None:
        round_trips_ms: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            broker = await client.admin.broker()
            took_ms = round((time.perf_counter() - began) * 1000, 3)
            round_trips_ms.append(took_ms)
            if not as_json:
                print(one_line(f"{broker['name']}, linn {broker['version']}: {took_ms:.3f} ms"), flush=True)
        if as_json:
            print_json({"broker": broker["name"], "version": broker["version"], "round_trips_ms": round_trips_ms})

    with_client(url, ask, timeout_s=timeout)
