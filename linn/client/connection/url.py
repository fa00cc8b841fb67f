"""Broker URLs: `linn://HOST[:PORT]`, `linn://[V6][:PORT]` and `linn+unix:///PATH`."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from linn.core.env.address import refuse_user
from linn.core.errors.tree import AddressInvalid

PORT = 5466
"""Default port: L-I-N-N on a telephone's keys."""
_UNIX = "linn+unix:///"
"""Beginning of a Unix socket's URL, in whose path an "@" separates no user."""


def address_of(url: str) -> str:
    """Parse a URL into the address that `Net.connect` takes. Raises AddressInvalid, which repeats no password."""
    try:
        if not url.lower().startswith(_UNIX):
            refuse_user(url)
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError) as error:
        raise AddressInvalid(f"{url!r} is not a URL of linn: {error}") from error
    if parts.scheme == "linn+unix":
        return _unix_address(url, parts.netloc, parts.path)
    if parts.scheme != "linn":
        raise AddressInvalid(f"{url!r} does not begin with linn:// or linn+unix://")
    host = parts.hostname
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise AddressInvalid(f"{url!r} is not linn://HOST[:PORT]")
    return f"[{host}]:{port or PORT}" if ":" in host else f"{host}:{port or PORT}"


def _unix_address(url: str, netloc: str, path: str) -> str:
    if netloc or len(path) < 2:
        raise AddressInvalid(f"{url!r} is not linn+unix:///PATH, with three slashes")
    return f"unix:{unquote(path)}"
