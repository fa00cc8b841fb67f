"""One client for the time of a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

import linn
from linn.client.client import Client

T = TypeVar("T")


def with_client(url: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect. Raises LinnError, alone or in groups; KeyboardInterrupt as usual."""

    async def main() -> T:
        # One attempt more than a hiccup needs: a command shall say soon that there is no broker.
        async with linn.connect(url, name="linn-cli", retries_max=2) as client:
            return await work(client)

    return anyio.run(main, backend="trio")
