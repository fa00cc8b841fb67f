"""Client session of one command.

The client is loaded on first use, so that the files of all commands may import this one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import typer

from linn.core.errors.tree import AddressInvalid, ConnectFailed, MessageInvalid, RequestUnknown

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.client.options import Tls

T = TypeVar("T")
RETRIES_MAX = 2
"""One attempt more than a short interruption needs."""


def with_client(
    url: str, work: Callable[[Client], Awaitable[T]], *, reconnects: bool = False, timeout_s: float = math.inf
) -> T:
    """Connect, run `work` with the client, disconnect, and return the result.

    `reconnects`: wait for the broker if the connection is lost, and log that to stderr; by default the command fails
    soon.

    Raises BadParameter for an invalid URL; ConnectFailed after `timeout_s`; LinnError, alone or in groups;
    KeyboardInterrupt as usual.
    """
    import anyio

    import linn

    broker_address(url)

    async def main() -> T:
        retries_max = None if reconnects else RETRIES_MAX
        if not reconnects:
            mute_client()
        async with linn.connect(url, name="linn-cli", retries_max=retries_max, tls=tls_of(url)) as client:
            try:
                return await work(client)
            except RequestUnknown as error:
                error.text += f"; the broker at {url} is older than this command"
                raise
            except UnicodeEncodeError as error:
                # Python decodes arguments that are not UTF-8 to surrogates, which can't be sent in a name.
                raise MessageInvalid("an argument that must be text is not valid Unicode") from error

    async def in_time() -> T:
        with anyio.move_on_after(timeout_s):
            return await main()
        raise ConnectFailed(f"the broker at {url} did not answer within {timeout_s:g} s")

    return anyio.run(in_time, backend="trio")


_ca: str | None = None
"""The authorities of `--ca`."""


def trust(ca: str | None) -> None:
    """Trust the authorities in a file for the rest of this process: the option `--ca`."""
    global _ca
    _ca = ca


def tls_of(url: str) -> Tls | None:
    """Return the TLS options of a URL: `--ca`, and the certificate and key that the environment names.

    None: a URL without TLS, for which they mean nothing.
    """
    from linn.client.options import Tls

    if not url.startswith("linns:"):
        return None
    certificate = os.environ.get("LINN_CERTIFICATE") or None
    return Tls(
        ca=_ca or os.environ.get("LINN_CA") or None,
        certificate=certificate,
        key=certificate and os.environ.get("LINN_KEY"),
    )


def mute_client() -> None:
    """Keep the client's log off stderr; the command's own error says the same."""
    import logging

    logging.getLogger("linn.client").setLevel(logging.CRITICAL)


def broker_address(url: str, option: str = "--url or LINN_URL") -> str:
    """Return the address in a URL. Raises BadParameter, which names the option."""
    from linn.client.connection.url import address_of
    from linn.core.env.address import parse_address

    try:
        address = address_of(url)
        parse_address(address)
    except AddressInvalid as error:
        raise typer.BadParameter(error.text, param_hint=option) from error
    return address
