"""What linn finds by the entry point `own-names`."""

from __future__ import annotations

from linn.api import AuthorizerKind, hookimpl
from linn_own_names.own_names import OwnNames, OwnNamesSettings


@hookimpl
def linn_register_authorizer() -> AuthorizerKind:
    """`authorizer = "own-names"` in `[broker]`."""
    return AuthorizerKind("own-names", OwnNamesSettings, OwnNames)
