"""Principals: the callers of the broker."""

from __future__ import annotations

from typing import NamedTuple

from linn.core.errors.texts import one_line


class Principal(NamedTuple):
    """The identity of a caller. Until there are logins its name is "anonymous"."""

    connection: str
    """The address of the caller's connection."""
    client: str = ""
    """The client's name as sent by the client."""
    name: str = "anonymous"

    def described(self) -> str:
        """The caller as text for a log line: name, address and client."""
        at, client = f" at {self.connection}" if self.connection else "", f" ({self.client})" if self.client else ""
        return one_line(self.name + at + client)
