"""Errors about users, their logins and their rights; a part of the tree."""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.errors.tree import LinnError
from linn.rights import Need


class AuthFailed(LinnError):
    """The login failed, or the broker requires one. The broker's log has the reason."""

    code = "auth.failed"


class Forbidden(LinnError):
    """The user has no role that allows this, and no authorizer does, whether or not the resource exists."""

    code = "auth.forbidden"
    undecided: Sequence[Need] = ()
    """Rights about which the authorizer is being asked: the same request may be allowed when they are decided. Not
    sent to clients."""


class UserUnknown(LinnError):
    """There is no user, or no role, of this name."""

    code = "auth.unknown"


class UserExists(LinnError):
    """There is a user or a role of this name, with other settings."""

    code = "auth.exists"
