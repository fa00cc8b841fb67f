"""Names of topics, exchanges and configuration tables, which become folders, URLs and log lines.

The rule is Kafka's, so that a topic keeps its name in that protocol: 1 to 249 of `A-Z a-z 0-9 . _ -`, not "." and
not "..". Names that begin with "__" are linn's own.
"""

from __future__ import annotations

import re

NAME_CHARACTERS_MAX = 249
"""Limit of a name's length, which leaves room for "-" and a partition number in a file name of 255 bytes."""

AUDIT_TOPIC = "__audit"
"""The topic of the audit trail, of each broker."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def name_problem(name: str) -> str | None:
    """The reason why a name is not valid, worded as the end of a message; None if it is valid."""
    if not name:
        return "a name has at least one character"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"a name has at most {NAME_CHARACTERS_MAX} characters, this one has {len(name)}"
    if not _NAME.fullmatch(name):
        return "a name is made of A-Z, a-z, 0-9, '.', '_' and '-'"
    if name in (".", ".."):
        return "'.' and '..' are not names"
    if name.startswith("__"):
        return "names that begin with '__' are reserved for linn itself"
    return None
