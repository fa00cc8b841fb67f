"""Asking a broker who it is: what `linn ping` does."""

from __future__ import annotations

import json
import time

from linn.cli.session import with_client
from linn.client.client import Client


def ping_broker(url: str, count: int, timeout_s: float, *, as_json: bool) -> None:
    """Print each answer as it comes, or all as one JSON object.

    Raises ConnectFailed where not all came in time; LinnError.
    """

    async def ask(client: Client) -> None:
        round_trips_ms: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            broker = await client.admin.broker()
            took_ms = round((time.perf_counter() - began) * 1000, 3)
            round_trips_ms.append(took_ms)
            if not as_json:
                print(f"{broker['name']}, linn {broker['version']}: {took_ms:.3f} ms", flush=True)
        if as_json:
            answer = {"broker": broker["name"], "version": broker["version"], "round_trips_ms": round_trips_ms}
            print(json.dumps(answer, indent=2))

    with_client(url, ask, timeout_s=timeout_s)
