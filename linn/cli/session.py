"""Client session of one command.

The client is loaded on first use, so that the files of all commands may import this one.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import typer

from linn.core.errors.tree import AddressInvalid, ConnectFailed, MessageInvalid, RequestUnknown

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.client.login import Password, Token
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

    login = login_of()

    async def main() -> T:
        retries_max = None if reconnects else RETRIES_MAX
        if not reconnects:
            mute_client()
        tls = tls_of(url)
        async with linn.connect(url, name="linn-cli", retries_max=retries_max, tls=tls, login=login) as client:
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

    # Ctrl-C ends the command, and no task of the client's, which the command may need to tidy up.
    options = {"restrict_keyboard_interrupt_to_checkpoints": True}
    return anyio.run(in_time, backend="trio", backend_options=options)


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


_user: str | None = None
"""The name of `--user`."""
SECRET_BYTES_MAX = 64 << 10


def log_in_as(user: str | None) -> None:
    """Log in as this user for the rest of this process: the option `--user`."""
    global _user
    _user = user


@cache
def login_of(*, asks: bool = True) -> Password | Token | None:
    """Return the login of this process: `--user` with a password, or a token; None: there is none.

    `asks`: ask on the terminal for a password that no file has. Raises BadParameter.
    """
    from linn.client.login import Password, Token

    user = _user or os.environ.get("LINN_USER") or None
    token, password = os.environ.get("LINN_TOKEN_FILE"), os.environ.get("LINN_PASSWORD_FILE")
    if user is None:
        return Token(lambda: secret_in(token, "LINN_TOKEN_FILE")) if token else None
    if password:
        return Password(user, secret_in(password, "LINN_PASSWORD_FILE"))
    if asks and sys.stdin.isatty() and sys.stderr.isatty():
        return Password(user, typer.prompt(f"Password of {user}", hide_input=True, err=True))
    if not asks:
        return None
    raise typer.BadParameter(
        f"no password of {user}: LINN_PASSWORD_FILE names its file", param_hint="--user or LINN_USER"
    )


def secret_in(path: str, variable: str) -> str:
    """Return the first line of a file that only its owner may use. Raises BadParameter, which names the variable."""
    try:
        # A FIFO without a writer would otherwise hold up the command.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                raise typer.BadParameter(f"{path}: others may use it; chmod 600 {path}", param_hint=variable)
            found = file.read(SECRET_BYTES_MAX).partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise typer.BadParameter(f"can't read {path}: {why}", param_hint=variable) from error
    if not found:
        raise typer.BadParameter(f"{path} is empty", param_hint=variable)
    return found


def mute_client() -> None:
    """Keep the client's log off stderr; the command's own error says the same."""
    import logging

    logging.getLogger("linn.client").setLevel(logging.CRITICAL)


def broker_address(url: str, option: str = "--url or LINN_URL") -> str:
    """Return the first address in a URL, after checking all. Raises BadParameter, which names the option."""
    from linn.client.connection.url import parse_url
    from linn.core.env.address import parse_address

    try:
        addresses = [place.address for place in parse_url(url)]
        for address in addresses:
            parse_address(address)
    except AddressInvalid as error:
        raise typer.BadParameter(error.text, param_hint=option) from error
    return addresses[0]
