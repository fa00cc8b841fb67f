"""One client for the time of a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

import linn
from linn.client.client import Client
from linn.core.errors import MessageInvalid, RequestUnknown

T = TypeVar("T")


def with_client(url: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect. Raises LinnError, alone or in groups; KeyboardInterrupt as usual."""

    async def main() -> T:
        # One attempt more than a hiccup needs: a command shall say soon that there is no broker.
        async with linn.connect(url, name="linn-cli", retries_max=2) as client:
            try:
                return await work(client)
            except RequestUnknown as error:
                error.text += f"; the broker at {url} is older than this command"
                raise
            except UnicodeEncodeError as error:
                # What Python makes of arguments that are not UTF-8 can't be sent as a name.
                raise MessageInvalid("an argument that must be text is not UTF-8") from error

    return anyio.run(main, backend="trio")
