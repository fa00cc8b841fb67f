"""The authorizer: `ann` may do what the settings name with `ann.orders`, `ann.invoices`, and no other name."""

from __future__ import annotations

from typing import Annotated

import msgspec

from linn.api import Decision, Env


class OwnNamesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[authorizers.NAME]` with `authorizer = "own-names"`."""

    separator: Annotated[
        str, msgspec.Meta(min_length=1, description="What stands between a user's name and the rest of a resource's.")
    ] = "."
    operations: Annotated[
        tuple[str, ...], msgspec.Meta(description="What users may do with their own; `see` is one of them anyway.")
    ] = ("publish", "consume", "browse", "use", "configure")
    holds_s: Annotated[float, msgspec.Meta(ge=1, description="Seconds for which an answer holds.")] = 3_600.0


class OwnNames:
    """The authorizer of a broker."""

    def __init__(self, settings: OwnNamesSettings, env: Env) -> None:
        self._settings = settings
        self._operations = frozenset({*settings.operations, "see"})

    async def may(self, user: str, operation: str, kind: str, name: str) -> Decision:
        """Compare names. Users whose names have the separator in them, or none at all, own nothing."""
        separator = self._settings.separator
        owns = bool(user) and user != "anonymous" and separator not in user and name.startswith(user + separator)
        return Decision(owns and operation in self._operations, self._settings.holds_s)
