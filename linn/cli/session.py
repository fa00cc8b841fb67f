"""One client for the time of a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import typer

import linn
from linn.client.client import Client
from linn.client.url import address_of
from linn.core.address import parse_address
from linn.core.errors import AddressInvalid, MessageInvalid, RequestUnknown

T = TypeVar("T")


def with_client(url: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect.

    Raises BadParameter where the URL is none; LinnError, alone or in groups; KeyboardInterrupt as usual.
    """
    broker_address(url)

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
                raise MessageInvalid("an argument that must be text is not valid Unicode") from error

    return anyio.run(main, backend="trio")


def broker_address(url: str) -> str:
    """The address that `--url`, or LINN_URL, names. Raises BadParameter."""
    try:
        address = address_of(url)
        parse_address(address)
    except AddressInvalid as error:
        raise typer.BadParameter(error.text, param_hint="--url or LINN_URL") from error
    return address
