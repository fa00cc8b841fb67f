"""Broker URLs: `linn://HOST[:PORT]`, `linn://[V6][:PORT]`, the same with `linns://` for TLS, and `linn+unix:///PATH`.

Several brokers of a cluster are separated by commas: `linn://HOST[:PORT],HOST[:PORT]`.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from linn.core.env.address import parse_address, refuse_user
from linn.core.errors.tree import AddressInvalid

PORT = 5466
"""Default port: L-I-N-N on a telephone's keys."""
ADDRESSES_MAX = 32
"""Limit of the addresses in a URL: an attempt to connect tries all of them, one after another."""
_UNIX = "linn+unix:///"
"""Beginning of a Unix socket's URL, in whose path an "@" separates no user."""


class BrokerUrl(NamedTuple):
    """One address of a URL."""

    address: str
    """The address that `Net.connect` takes."""
    tls_host: str | None
    """The name or IP address that the broker's certificate must have; None: a connection without TLS."""


def parse_url(url: str, *, needs_tls: bool = False) -> list[BrokerUrl]:
    """Parse a URL into its addresses, in its order.

    Raises AddressInvalid, which repeats no password: it is malformed, has too many addresses, or is without TLS and
    `needs_tls`.
    """
    parsed = _parsed(url)
    if needs_tls and parsed[0].tls_host is None:
        raise AddressInvalid(f"{url!r} is a URL without TLS, and there is tls=: the URL begins with linns://")
    return parsed


def place_of(address: str, *, is_tls: bool) -> BrokerUrl:
    """Return the meaning of an address as brokers tell it to clients. Raises AddressInvalid."""
    place = parse_address(address)
    return BrokerUrl(address, place[0] if is_tls and not isinstance(place, str) else None)


def _parsed(url: str) -> list[BrokerUrl]:
    try:
        if url.lower().startswith(_UNIX):
            parts = urlsplit(url)
            return [BrokerUrl(_unix_address(url, parts.netloc, parts.path), None)]
        refuse_user(url)
        scheme, separator, rest = url.partition("://")
        places = rest.split(",")
        if len(places) > ADDRESSES_MAX:
            raise AddressInvalid(f"a URL has at most {ADDRESSES_MAX} addresses, and this one has {len(places)}")
        found = [_place(url, f"{scheme}{separator}{place}") for place in places]
    except (ValueError, AttributeError, TypeError) as error:
        raise AddressInvalid(f"{url!r} is not a URL of linn: {error}") from error
    return list(dict.fromkeys(found))


def _place(url: str, one: str) -> BrokerUrl:
    """Parse one address, with the scheme of its URL."""
    parts = urlsplit(one)
    port = parts.port
    if parts.scheme == "linn+unix":
        return BrokerUrl(_unix_address(url, parts.netloc, parts.path), None)
    if parts.scheme not in ("linn", "linns"):
        raise AddressInvalid(f"{url!r} does not begin with linn://, linns:// or linn+unix://")
    host = parts.hostname
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise AddressInvalid(f"{url!r} is not {parts.scheme}://HOST[:PORT], or several of them after commas")
    address = f"[{host}]:{port or PORT}" if ":" in host else f"{host}:{port or PORT}"
    return BrokerUrl(address, host if parts.scheme == "linns" else None)


def _unix_address(url: str, netloc: str, path: str) -> str:
    if netloc or len(path) < 2:
        raise AddressInvalid(f"{url!r} is not linn+unix:///PATH, with three slashes")
    return f"unix:{unquote(path)}"
