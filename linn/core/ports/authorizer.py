"""The authorizer port: a plugin that decides about rights that no role gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from linn.core.env.env import Env
from linn.core.security.authority import Decision as Decision


class Authorizer(Protocol):
    """The authorizer of a broker."""

    async def may(self, user: str, operation: str, kind: str, name: str) -> Decision:
        """Decide whether a user may do this to a resource, whether or not it exists, and for how long that holds.

        Operations and kinds are the same as in roles: "publish" on a "topic". `name` is "" for the broker.

        It runs in the broker's loop, so it waits with `await`. It has 5 seconds, waiting for a turn included; up to 64
        calls run at a time, and each answer is kept for as long as it holds: publishing 10,000 batches a second asks
        once. An exception, a late answer and another type deny for a second.

        Cancellation: the time is over, or the broker stops.
        """


@dataclass(frozen=True, slots=True)
class AuthorizerKind:
    """An authorizer, as a plugin registers it."""

    name: str
    """The value of `authorizer =` in `[broker]`, or in an `[authorizers.*]` table that is named there."""
    settings: type[Any] | None
    """A frozen msgspec.Struct with a default and a help text for each field; None without settings."""
    make: Callable[[Any, Env], Authorizer]
    """(own settings or None, the broker's Env) -> the authorizer. Does no I/O but reading files."""
