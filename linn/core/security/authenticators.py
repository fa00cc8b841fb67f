"""Authenticators: plugins that check passwords and tokens, and the guard around each of them.

Laws: an exception, an answer of another type and an answer after `ANSWER_S` refuse the login. At most
`CHECKS_AT_ONCE` logins are with one authenticator, and `WAITING_MAX` wait for it. Nothing of the credentials is logged,
nor is the text of an authenticator's exception, which may quote them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

import trio

from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.plain import PLAIN
from linn.core.security.sasl.prepare import check_name
from linn.core.security.sasl.tokens import BEARER, ROLES_MAX

ANSWER_S = 5.0
"""Time for an answer, waiting for a turn included: half of the time that a connection has for its login."""
CHECKS_AT_ONCE = 16
"""Logins that one authenticator checks at a time: a directory server gets no more connections than that."""
WAITING_MAX = 256
"""Logins that wait for one authenticator, each of about 3 KiB besides its connection."""
MECHANISMS = (PLAIN, BEARER)
"""Mechanisms that hand the credentials themselves to the broker."""


class Credentials:
    """A client's name and password, or its token. The text of this object has no secret."""

    __slots__ = ("address", "mechanism", "secret", "user")

    def __init__(self, mechanism: str, user: str, secret: str, address: str = "") -> None:
        self.mechanism = mechanism
        """ "PLAIN": a user's name and password; "OAUTHBEARER": a token."""
        self.user = user
        """The name that the client gives; "" with a token."""
        self.secret = secret
        """The password, of at most 1 KiB, or the token, of at most 8 KiB. Never log it."""
        self.address = address
        """The client's address, such as "10.0.0.7:40122" or "unix:/run/linn.sock"."""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism!r}, {self.user!r}, ***, {self.address!r})"


class Authenticated(NamedTuple):
    """The answer of an authenticator: who the client is."""

    user: str
    """The name of the user, 1 to 255 bytes of UTF-8. It need not be in `[users]`."""
    roles: Sequence[str] = ()
    """Roles of the session besides the user's own, up to 100. Unknown ones are ignored."""
    ends_s: float = math.inf
    """Unix time at which the login ends, as a token does."""


class BoundAuthenticator:
    """An authenticator under its name in the listeners' `methods`."""

    def __init__(
        self,
        name: str,
        mechanisms: Collection[str],
        authenticate: Callable[[Credentials], Awaitable[object]],
        blamed: Callable[[BaseException], str],
    ) -> None:
        """`blamed`: names the plugin that raised an error, and the place."""
        self.name = name
        self.mechanisms = mechanisms
        self._authenticate = authenticate
        self._blamed = blamed
        self._turns = trio.CapacityLimiter(CHECKS_AT_ONCE)
        self._waiting = 0

    async def check(self, credentials: Credentials) -> Authenticated:
        """Ask the authenticator. Raises SaslError: it denies the login, or fails. Cancellation: the question ends."""
        found = await self._answer(credentials)
        if found is None:
            raise SaslError(f"{self.name} denies it")
        problem = _problem_with(found)
        if problem is not None:
            raise SaslError(f"{self.name} {problem}")
        assert isinstance(found, Authenticated), "checked just now"
        return found

    async def _answer(self, credentials: Credentials) -> object:
        """Return whatever the authenticator answers in time. Raises SaslError."""
        if self._waiting >= WAITING_MAX:
            raise SaslError(f"{WAITING_MAX} other logins wait for {self.name}")
        found: object = None
        self._waiting += 1
        try:
            with trio.move_on_after(ANSWER_S) as scope:
                async with self._turns:
                    found = await self._authenticate(credentials)
        except Exception as error:
            raise SaslError(f"{self.name} failed: {type(error).__name__} in {self._blamed(error)}") from None
        finally:
            self._waiting -= 1
        if trio.current_time() >= scope.deadline:  # An answer may also come late without being cancelled.
            raise SaslError(f"{self.name} gave no answer within {ANSWER_S:.0f} s")
        return found


def _problem_with(found: object) -> str | None:
    """The reason why an answer is none; None if it is one."""
    if not isinstance(found, Authenticated):
        return f"answered with a {type(found).__name__}, not with Authenticated or None"
    user, roles, ends_s = found
    try:
        if not isinstance(user, str):
            raise ValueError(f"a {type(user).__name__}")
        check_name(user)
    except ValueError as error:
        return f"answered without a user's name: {error}"
    if isinstance(roles, str) or not isinstance(roles, Collection) or len(roles) > ROLES_MAX:
        return f"answered with roles that are no list of at most {ROLES_MAX}"
    if not all(isinstance(role, str) for role in roles):
        return "answered with a role that is no text"
    if isinstance(ends_s, bool) or not isinstance(ends_s, int | float) or not ends_s > 0:
        return "answered without a time at which the login ends"
    return None
