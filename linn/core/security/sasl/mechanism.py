"""The port of mechanisms on the broker's side, and their refusal."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SaslError(Exception):
    """A login that is refused. The text is for the log of the side that refuses: the other side does not learn it."""


class Step(NamedTuple):
    """An answer to the client."""

    data: bytes
    user: str = ""
    """The name of the user who has logged in; "": the login goes on."""


class ServerMechanism(Protocol):
    """One login with one mechanism."""

    def step(self, data: bytes) -> Step:
        """Take the client's next message. Raises SaslError; then, and after success, every other call does too."""
