"""Users, and the facts by which a login recognizes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from linn.core.errors.tree import ConfigError
from linn.core.security.quota import Limits
from linn.core.security.rule import Rule
from linn.core.security.sasl.prepare import check_name
from linn.core.security.sasl.scram import Verifier

ANONYMOUS = "anonymous"
"""The user of clients without a login."""
SERVICE = "service:"
"""Beginning of the names of the broker's own programs, which no user can have."""
NO_LIMITS = Limits()


def node_user(node: int) -> str:
    """The name of a broker of the cluster, as the user of its own requests to others."""
    return f"{SERVICE}node/{node}"


class User(msgspec.Struct, frozen=True, kw_only=True):
    """One user."""

    name: str
    roles: tuple[str, ...] = ()
    scram: str = ""
    """The verifier of the password, as PostgreSQL writes it: `SCRAM-SHA-256$ITERATIONS:SALT$STORED:SERVER` in Base64.
    "": no password."""
    certificate: str = ""
    """The name in the client's certificate: a URI or DNS name of its subject's alternative names. "": none."""
    uid: int | None = None
    """The user's id on this machine, for Unix sockets."""
    limits: Limits = NO_LIMITS


class ServiceUser(NamedTuple):
    """A program that a service of the broker runs: it logs in with a password that ends with it."""

    name: str
    verifier: Verifier
    rules: tuple[Rule, ...]


def check_user_name(name: str) -> None:
    """Check a user's name: 1 to 255 bytes of UTF-8, in the one form of SASLprep, and not a program's. Raises
    ConfigError.
    """
    try:
        check_name(name)
    except ValueError as error:
        raise ConfigError(f"not a user's name: {name!r:.80}: {error}") from None
    if name.startswith(SERVICE):
        raise ConfigError(f"not a user's name: {name!r:.80}: the broker's own programs are called \"{SERVICE}...\"")


class Users:
    """All users of a broker. Lists and verbs change it; logins look users up."""

    def __init__(self, users: Iterable[User] = ()) -> None:
        self._users = {user.name: user for user in users}
        self.services: dict[str, ServiceUser] = {}
        """Programs of services that run now. No verb shows or changes them, and only their passwords log them in."""

    @property
    def by_name(self) -> Mapping[str, User]:
        """All users."""
        return self._users

    def find(self, name: str) -> User | None:
        """Return the user of this name."""
        return self._users.get(name)

    def of_certificate(self, names: Iterable[str]) -> User | None:
        """Return the user with one of these names in its certificate; None if there is none, or more than one."""
        named = set(names)
        found = [user for user in self._users.values() if user.certificate and user.certificate in named]
        return found[0] if len(found) == 1 else None

    def of_uid(self, uid: int) -> User | None:
        """Return the user with this id on the machine."""
        return next((user for user in self._users.values() if user.uid == uid), None)

    def put(self, user: User) -> None:
        """Add or replace a user."""
        self._users[user.name] = user

    def remove(self, name: str) -> None:
        """Remove a user, if there is one."""
        self._users.pop(name, None)
