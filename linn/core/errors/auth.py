"""Errors about users, their logins and their rights; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import LinnError


class AuthFailed(LinnError):
    """The login failed, or the broker requires one. The broker's log has the reason."""

    code = "auth.failed"


class Forbidden(LinnError):
    """The user has no role that allows this, whether or not the resource exists."""

    code = "auth.forbidden"


class UserUnknown(LinnError):
    """There is no user, or no role, of this name."""

    code = "auth.unknown"


class UserExists(LinnError):
    """There is a user or a role of this name, with other settings."""

    code = "auth.exists"
