"""PLAIN (RFC 4616): the password itself, for clients of other protocols. Only inside TLS, or on a Unix socket.

Laws: passwords are hashed in threads, a few at a time; others wait, and beyond `WAITING_MAX` are refused. The password
of a login is not kept: a success is remembered for `KNOWN_S` under a keyed hash, so that a client that opens a hundred
connections costs one computation.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.prepare import PASSWORD_BYTES_MAX, check_name
from linn.core.security.sasl.scram import Verifier, unknown_user

PLAIN = "PLAIN"
WAITING_MAX = 64
"""Passwords that wait for a thread, each for 11 ms: the last one waits for a third of a second."""
KNOWN_S = 60.0
KNOWN_MAX = 1_024
"""Successes that are remembered, each in 200 bytes."""


def parse_plain(data: bytes) -> tuple[str, str]:
    """Read (user, password) from the client's message. Raises SaslError."""
    if len(data) > 3 * PASSWORD_BYTES_MAX:
        raise SaslError("a message that is too long")
    try:
        authorize, user, password = data.decode().split("\0")
        check_name(user)
    except ValueError as error:
        raise SaslError(f"not a message of PLAIN: {error}") from None
    if authorize not in ("", user):
        raise SaslError("a login in another user's name")
    if not 0 < len(password.encode()) <= PASSWORD_BYTES_MAX:
        raise SaslError("no password, or one that is too long")
    return user, password


class PlainPasswords:
    """The check of passwords, for all connections of a broker."""

    def __init__(
        self,
        find: Callable[[str], Verifier | None],
        secret: bytes,
        monotonic: Callable[[], float],
        in_thread: Callable[[Callable[[], bool]], Awaitable[bool]],
    ) -> None:
        """
        Args:
            find: returns the verifier of the user with a name.
            secret: at least 16 random bytes.
            in_thread: runs a computation in a thread, in order.
        """
        self._find = find
        self._secret = secret
        self._monotonic = monotonic
        self._in_thread = in_thread
        self._known: dict[bytes, float] = {}
        """When each success ceases to count, by its keyed hash, oldest first."""
        self._waiting = 0

    async def check(self, user: str, password: str) -> None:
        """Check a password. Raises SaslError: it is wrong, there is no such user, or too many wait."""
        found = self._find(user)
        verifier = found or unknown_user(user, self._secret)
        # The verifier is part of it, so that an old password ends with it.
        parts = [verifier.text(), user, password]
        key = hmac.digest(self._secret, "\0".join(parts).encode(errors="surrogatepass"), "sha256")
        if found is not None and self._known.get(key, 0.0) > self._monotonic():
            return
        if self._waiting >= WAITING_MAX:
            raise SaslError(f"{WAITING_MAX} other passwords wait to be checked")
        self._waiting += 1
        try:
            is_right = await self._in_thread(lambda: verifier.accepts(password))
        finally:
            self._waiting -= 1
        if not (is_right and found is not None):
            raise SaslError("a wrong password, or an unknown user")
        self._known.pop(key, None)
        self._known[key] = self._monotonic() + KNOWN_S
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
