"""One client for the time of a command."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import typer

import linn
from linn.client.client import Client
from linn.client.connection.url import address_of
from linn.core.env.address import parse_address
from linn.core.errors.tree import AddressInvalid, ConnectFailed, MessageInvalid, RequestUnknown

T = TypeVar("T")
RETRIES_MAX = 2
"""One attempt more than a hiccup needs."""


def with_client(
    url: str, work: Callable[[Client], Awaitable[T]], *, comes_back: bool = False, timeout_s: float = math.inf
) -> T:
    """Connect, do the work, disconnect.

    `comes_back`: where the connection is lost the client says so on stderr and waits for the broker; otherwise it gives
    up soon, as a command shall that is to answer.

    Raises BadParameter where the URL is none; ConnectFailed where it takes longer than `timeout_s`; LinnError, alone
    or in groups; KeyboardInterrupt as usual.
    """
    broker_address(url)

    async def main() -> T:
        retries_max = None if comes_back else RETRIES_MAX
        if not comes_back:
            mute_client()
        async with linn.connect(url, name="linn-cli", retries_max=retries_max) as client:
            try:
                return await work(client)
            except RequestUnknown as error:
                error.text += f"; the broker at {url} is older than this command"
                raise
            except UnicodeEncodeError as error:
                # What Python makes of arguments that are not UTF-8 can't be sent as a name.
                raise MessageInvalid("an argument that must be text is not valid Unicode") from error

    async def in_time() -> T:
        with anyio.move_on_after(timeout_s):
            return await main()
        raise ConnectFailed(f"the broker at {url} did not answer within {timeout_s:g} s")

    return anyio.run(in_time, backend="trio")


def mute_client() -> None:
    """Keep the client's log lines off stderr, where what follows says the same."""
    logging.getLogger("linn.client").setLevel(logging.CRITICAL)


def broker_address(url: str) -> str:
    """The address that `--url`, or LINN_URL, names. Raises BadParameter."""
    try:
        address = address_of(url)
        parse_address(address)
    except AddressInvalid as error:
        raise typer.BadParameter(error.text, param_hint="--url or LINN_URL") from error
    return address
