"""Endpoint: a URL of a member of etcd."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from linn.api import AddressInvalid, parse_address

PORT = 2379
"""etcd's port for clients."""


class Endpoint(NamedTuple):
    """The meaning of a URL."""

    address: str
    """The address that `Net.connect` takes."""
    tls_host: str | None
    """The name or IP address that the certificate must have; None: a connection without TLS."""

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Parse a URL. Raises AddressInvalid, which repeats no password."""
        if "@" in url:
            raise AddressInvalid("a URL of etcd has no user and no password: set user and password")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or PORT
        except ValueError as error:
            raise AddressInvalid(f"{url!r} is no URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/") or parts.query:
            raise AddressInvalid(f"{url!r} is not http://HOST[:PORT] or https://HOST[:PORT]")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        parse_address(address)
        return cls(address, host if parts.scheme == "https" else None)
