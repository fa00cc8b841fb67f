"""The authenticator port: a plugin that checks the passwords or tokens with which clients log in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from linn.core.env.env import Env
from linn.core.security.authenticators import Authenticated as Authenticated
from linn.core.security.authenticators import Credentials as Credentials
from linn.core.security.sasl.plain import PLAIN


class Authenticator(Protocol):
    """A check of credentials, for all listeners that name it in `methods`."""

    async def authenticate(self, credentials: Credentials) -> Authenticated | None:
        """Tell who the client is; None denies the login.

        It runs in the broker's loop, so it waits with `await`, and computes in threads: `env.threads.run` takes a
        hash. It has 5 seconds, waiting for a turn included; up to 16 calls run at a time. An exception, a late answer
        and another type refuse the login; the log names the plugin and the type of the exception, never its text.

        Cancellation: the time is over, or the broker stops. The client may be gone by the time of the answer.
        """


@dataclass(frozen=True, slots=True)
class AuthenticatorKind:
    """An authenticator, as a plugin registers it."""

    name: str
    """The value of `authenticator =` in an `[authenticators.*]` table, and the name of a table that always exists."""
    settings: type[Any] | None
    """A frozen msgspec.Struct with a default and a help text for each field; None without settings."""
    make: Callable[[Any, Env], Authenticator]
    """(own settings or None, the broker's Env) -> the authenticator. Does no I/O but reading files."""
    mechanisms: tuple[str, ...] = (PLAIN,)
    """Mechanisms of which it checks the credentials: "PLAIN" (name and password), "OAUTHBEARER" (a token), or both."""
