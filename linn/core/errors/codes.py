"""Errors by their codes."""

from __future__ import annotations

from linn.core.errors import auth, cluster, inboxes, metadata, peers, replication, tls  # noqa: F401  Parts of the tree.
from linn.core.errors.tree import LinnError


def all_errors() -> dict[str, type[LinnError]]:
    """All error classes of linn by code, including the root."""
    found: dict[str, type[LinnError]] = {}
    pending: list[type[LinnError]] = [LinnError]
    while pending:
        error = pending.pop()
        assert error.code not in found, f"two errors share the code {error.code}"
        found[error.code] = error
        pending.extend(error.__subclasses__())
    return found


def error_from_code(code: str, text: str) -> LinnError:
    """Make the error for a code sent by the peer; an unknown code becomes a `LinnError` with the code in its text."""
    found = all_errors().get(code)
    return found(text) if found is not None else LinnError(f"{text} ({code})")
