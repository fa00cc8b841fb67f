"""Refusals and answers of the broker's side of every mechanism."""

from __future__ import annotations

from typing import NamedTuple


class SaslError(Exception):
    """A login that is refused. The text is for the log of the side that refuses: the other side does not learn it."""


class Step(NamedTuple):
    """An answer to the client."""

    data: bytes
    user: str = ""
    """The name of the user who has logged in; "": the login goes on."""
