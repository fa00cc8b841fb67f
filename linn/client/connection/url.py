"""Broker URLs: `linn://HOST[:PORT]`, `linn://[V6][:PORT]` and `linn+unix:///PATH`."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from linn.core.errors.tree import AddressInvalid

PORT = 5466
"""Default port: L-I-N-N on a telephone's keys."""


def address_of(url: str) -> str:
    """Parse a URL into the address that `Net.connect` takes. Raises AddressInvalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError) as error:
        raise AddressInvalid(f"{url!r} is not a URL of linn: {error}") from error
    if parts.scheme == "linn+unix":
        return _unix_address(url, parts.netloc, parts.path)
    if parts.scheme != "linn":
        raise AddressInvalid(f"{url!r} does not begin with linn:// or linn+unix://")
    host = parts.hostname
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise AddressInvalid(f"{url!r} is not linn://HOST[:PORT]")
    return f"[{host}]:{port or PORT}" if ":" in host else f"{host}:{port or PORT}"


def _unix_address(url: str, netloc: str, path: str) -> str:
    if netloc or len(path) < 2:
        raise AddressInvalid(f"{url!r} is not linn+unix:///PATH, with three slashes")
    return f"unix:{unquote(path)}"
