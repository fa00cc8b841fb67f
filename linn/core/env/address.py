"""Parsing of addresses in TOML, in clients' URLs and in the broker's log."""

from __future__ import annotations

import ipaddress
import os

from linn.core.errors.tree import AddressInvalid

_UNIX_PATH_BYTES_MAX = 107
"""The length of Linux's `sun_path` without its closing zero."""


def parse_address(address: str) -> tuple[str, int] | str:
    """Parse "HOST:PORT" or "[V6]:PORT" to (host, port), or "unix:PATH" to the path. Raises AddressInvalid."""
    if address.startswith("unix:"):
        path = address[5:]
        if not path or "\0" in path or len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
            raise AddressInvalid(f"{address!r}: a Unix socket's path has 1 to {_UNIX_PATH_BYTES_MAX} bytes")
        return path
    refuse_user(address)
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host) != bracketed or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise AddressInvalid(f"{address!r} is not HOST:PORT, [V6]:PORT or unix:PATH")
    return host, int(port)


def refuse_user(address: str) -> None:
    """Refuse an address or a URL with an "@", without repeating what may be a password. Raises AddressInvalid."""
    if "@" in address:
        raise AddressInvalid("an address or a URL of linn has no user and no password: leave out all up to the '@'")


def is_beyond_loopback(address: str) -> bool:
    """Tell whether other machines may reach an address to listen at; a name other than localhost may be any address.

    Raises AddressInvalid.
    """
    place = parse_address(address)
    if isinstance(place, str):
        return False
    try:
        return not ipaddress.ip_address(place[0]).is_loopback
    except ValueError:
        return place[0] != "localhost"


def is_wildcard(host: str) -> bool:
    """Tell whether a host stands for all addresses of this machine, to which no other one can connect."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_wildcard_address(address: str) -> bool:
    """Tell whether an address to listen at has such a host. Raises AddressInvalid."""
    place = parse_address(address)
    return not isinstance(place, str) and is_wildcard(place[0])


def anonymous_text(address: str) -> str:
    """Return the reason why a listener at this address must say whether it requires logins, worded as `open_text`."""
    return (
        f"other machines reach {address}, and the listener does not say whether they must log in: set login = "
        '"required", or login = "none" if all of them may do what the user "anonymous" may'
    )


def open_text(address: str) -> str:
    """Return the reason why a listener at this address needs TLS, worded as the end of a message."""
    return (
        f"other machines reach {address}, and the listener has no TLS: set tls, or plaintext = true if everybody on "
        "the way may read and change what is sent"
    )
