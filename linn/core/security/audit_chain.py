"""The chain of audit records: each has the hash of the one before it, so that a change or a gap is found.

A record is one JSON object as text; `previous` is the SHA-256 of the whole text before it, in hex, and "" in the first.
Retention drops records from the start: a chain may begin anywhere. Nothing here protects the end: keep the last hash
elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


class AuditChain:
    """The writing end of a chain."""

    def __init__(self) -> None:
        self.last = ""
        """The hash of the last record, in hex; "" before the first one."""

    def resume(self, text: bytes) -> None:
        """Continue after the last stored record."""
        self.last = hash_of(text)

    def next(self, fields: Mapping[str, Any]) -> bytes:
        """Write the text of the next record. Call `resume` with it once it is stored."""
        return json.dumps({**fields, "previous": self.last}, ensure_ascii=True, separators=(",", ":")).encode()


class ChainVerifier:
    """The reading end: takes all records in order."""

    def __init__(self) -> None:
        self.last: str | None = None
        """The hash of the last record; None before the first one."""

    def check(self, text: bytes) -> str | None:
        """Take a record; return the problem with it, or None. The first one is taken as it is."""
        expected, self.last = self.last, hash_of(text)
        try:
            previous = json.loads(text)["previous"]
        except (ValueError, KeyError, TypeError):
            return "it is not an audit record"
        if expected is not None and previous != expected:
            return "the record before it was changed or is missing"
        return None


def hash_of(text: bytes) -> str:
    """The SHA-256 of a record's text, in hex."""
    return hashlib.sha256(text).hexdigest()
