"""Errors of TLS; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import ConfigError, ConnectFailed, ProtocolError


class TlsInvalid(ConfigError):
    """A certificate or key can't be used: it is missing, damaged, expired, open to others, or they don't fit."""

    code = "config.tls"

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text)
        self.key = key
        """The setting that names the file."""


class TlsFailed(ConnectFailed):
    """A TLS connection was refused: a certificate is not accepted, or the two sides have no version in common."""

    code = "tls.failed"


class TlsRequired(ProtocolError):
    """The listener speaks only TLS, and the client does not."""

    code = "tls.required"
