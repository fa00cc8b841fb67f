"""Principals: the callers of the broker."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from linn.core.errors.texts import one_line
from linn.core.security.access import Access
from linn.core.security.users import ANONYMOUS as ANONYMOUS

NO_ACCESS = Access(ANONYMOUS)
NOT_LOGGED_IN = "none"
"""The `login` of callers that no listener has asked for one."""


class Principal(NamedTuple):
    """The identity and the rights of a caller."""

    connection: str
    """The address of the caller's connection."""
    client: str = ""
    """The client's name as sent by the client."""
    name: str = ANONYMOUS
    """The user's name; `ANONYMOUS` without a login."""
    access: Access = NO_ACCESS
    """The user's rights, set by the gateway."""
    login: str = NOT_LOGGED_IN
    """The way in which the user has logged in: "peer", "certificate", the name of a mechanism, or "none"."""
    roles: Collection[str] = ()
    """Roles that the login gave, as a token does, besides the user's own; unknown ones allow nothing."""

    def described(self) -> str:
        """The caller as text for a log line: name, address and client."""
        at, client = f" at {self.connection}" if self.connection else "", f" ({self.client})" if self.client else ""
        return one_line(self.name + at + client)
