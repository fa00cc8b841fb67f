"""Logins of scrapers: the header Authorization of each request, as Basic (RFC 7617) or Bearer (RFC 6750).

Laws: a login is one of the broker's, with its mechanisms PLAIN and OAUTHBEARER, so that failures are counted, delayed
and audited as in other protocols. Each request logs in: proxies send requests of several clients over one connection,
and a changed password, or a token that has ended, is refused at once. A password that was right costs no computation
for a minute.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable

from linn.api import AcceptedStream, AuthFailed, Gateway, Identity, Login

BASIC, BEARER = "PLAIN", "OAUTHBEARER"
"""The broker's mechanisms that stand behind the two schemes."""
HEADERS = {BASIC: 'Basic realm="linn", charset="UTF-8"', BEARER: 'Bearer realm="linn"'}
"""The value of WWW-Authenticate for each."""


class RequestLogins:
    """The logins of the requests of one connection."""

    def __init__(self, stream: AcceptedStream, gateway: Gateway) -> None:
        self._stream = stream
        self._gateway = gateway
        self._login: Login | None = None
        """The next attempt."""

    @property
    def challenges(self) -> list[str]:
        """The ways to log in, as values of WWW-Authenticate."""
        return [HEADERS[name] for name in self._attempt.mechanisms if name in HEADERS]

    async def identity(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity | None:
        """Return who sends a request; None: it has to log in, and does not try to.

        `headers`: (name in lower case, value). Raises AuthFailed, after a wait if there were failures before.
        """
        if self._attempt.identity is not None:
            return self._attempt.identity
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            return None
        attempt, self._login = self._attempt, None
        await attempt.step(*_message_of(given))
        if attempt.identity is None:
            raise AuthFailed("the login failed")
        return attempt.identity

    @property
    def _attempt(self) -> Login:
        if self._login is None:
            self._login = self._gateway.login(self._stream)
        return self._login


def _message_of(given: list[bytes]) -> tuple[str, bytes]:
    """Return the mechanism and its message for the headers; a message that is always refused for invalid ones."""
    scheme, _, value = given[0].partition(b" ")
    if len(given) == 1 and scheme.lower() == b"bearer":
        return BEARER, b"n,,\1auth=Bearer " + value.strip() + b"\1\1"
    try:
        user, colon, password = b64decode(value.strip(), validate=True).partition(b":")
    except binascii.Error:
        user, colon, password = b"", b"", b""
    is_basic = len(given) == 1 and scheme.lower() == b"basic" and colon
    return BASIC, b"\0" + user + b"\0" + password if is_basic else b""
