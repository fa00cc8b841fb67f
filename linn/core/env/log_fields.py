"""Fields of log lines, with the same names in all of linn.

A call gives its fields as one mapping: `logger.error("%(topic)s is full: %(error)s", {"topic": ..., "error": ...})`.
The text of the line uses the fields that it names; a handler that writes JSON uses all fields. The names are
`connection` (the peer), `listener`, `protocol`, `topic`, `exchange`, `partition`, `group`, `plugin`, `code` (of an
error), `error` and `count`; `tls` (a table of certificates) with `days` (left to its end); below an engine, which knows
only files, `folder`, `file` and `offset`; in a client `broker` (its address) and `seconds`.
"""

from __future__ import annotations

from linn.core.errors.tree import LinnError


def log_fields(error: LinnError | None) -> dict[str, object]:
    """The fields `error` and `code` of an error; empty for None."""
    return {"error": str(error), "code": error.code} if error is not None else {}
