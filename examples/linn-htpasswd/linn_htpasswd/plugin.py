"""What linn finds by the entry point `htpasswd`."""

from __future__ import annotations

from linn.api import AuthenticatorKind, hookimpl
from linn_htpasswd.password_file import PasswordFile, PasswordFileSettings


@hookimpl
def linn_register_authenticator() -> AuthenticatorKind:
    """`methods = ["htpasswd"]` in a listener."""
    return AuthenticatorKind("htpasswd", PasswordFileSettings, PasswordFile)
