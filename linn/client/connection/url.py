"""Broker URLs: `linn://HOST[:PORT]`, `linn://[V6][:PORT]`, the same with `linns://` for TLS, and `linn+unix:///PATH`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from linn.core.env.address import refuse_user
from linn.core.errors.tree import AddressInvalid

PORT = 5466
"""Default port: L-I-N-N on a telephone's keys."""
_UNIX = "linn+unix:///"
"""Beginning of a Unix socket's URL, in whose path an "@" separates no user."""


class BrokerUrl(NamedTuple):
    """The meaning of a URL."""

    address: str
    """The address that `Net.connect` takes."""
    tls_host: str | None
    """The name or IP address that the broker's certificate must have; None: a connection without TLS."""


def address_of(url: str) -> str:
    """Parse a URL into the address that `Net.connect` takes. Raises AddressInvalid, which repeats no password."""
    return parse_url(url).address


def parse_url(url: str, *, needs_tls: bool = False) -> BrokerUrl:
    """Parse a URL. Raises AddressInvalid: it is malformed, or is without TLS and `needs_tls`."""
    parsed = _parsed(url)
    if needs_tls and parsed.tls_host is None:
        raise AddressInvalid(f"{url!r} is a URL without TLS, and there is tls=: the URL begins with linns://")
    return parsed


def _parsed(url: str) -> BrokerUrl:
    try:
        if not url.lower().startswith(_UNIX):
            refuse_user(url)
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError) as error:
        raise AddressInvalid(f"{url!r} is not a URL of linn: {error}") from error
    if parts.scheme == "linn+unix":
        return BrokerUrl(_unix_address(url, parts.netloc, parts.path), None)
    if parts.scheme not in ("linn", "linns"):
        raise AddressInvalid(f"{url!r} does not begin with linn://, linns:// or linn+unix://")
    host = parts.hostname
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise AddressInvalid(f"{url!r} is not {parts.scheme}://HOST[:PORT]")
    address = f"[{host}]:{port or PORT}" if ":" in host else f"{host}:{port or PORT}"
    return BrokerUrl(address, host if parts.scheme == "linns" else None)


def _unix_address(url: str, netloc: str, path: str) -> str:
    if netloc or len(path) < 2:
        raise AddressInvalid(f"{url!r} is not linn+unix:///PATH, with three slashes")
    return f"unix:{unquote(path)}"
