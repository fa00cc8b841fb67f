"""Secrets among the options of sinks, connections and Spark's configuration: which may not stand in plain text.

Options belong to Spark, to drivers of databases and to libraries of tables, so that only their names, and passwords in
URLs, give a secret away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from linn.api import HOW_TO_WRITE_SECRETS, Secret

_SECRET = re.compile(
    r"passw(or)?d|passphrase|pwd|secret|token|credential|(access|account|private|api|shared|sas)[._-]?key|jaas", re.I
)
_ABOUT_ONE = re.compile(
    r"(^|[._-])(file|path|location|provider|class|type|ur[il]|endpoint|enabled|id|name|alias|mode|algorithm|format|"
    r"length|timeout|interval|ms|seconds)$|File$|Path$|Id$|(Url|Uri)$|Location$|Provider$|Type$|Enabled$"
)
"""The ends of names of options that are about a secret, such as the file that it is in."""
_IN_URL = re.compile(r"//[^/?#@\s]*:[^/?#@\s]+@|[?&;](password|pwd|passwd|secret|token|access_?token)=[^&;]", re.I)


def is_secret(name: str) -> bool:
    """Whether the value of an option of this name is a secret."""
    return _SECRET.search(name) is not None and _ABOUT_ONE.search(name) is None


def plain_secrets(options: Mapping[str, str | Secret]) -> Iterator[tuple[str, str]]:
    """Yield each option that has a secret in plain text, with the fault, worded as the end of a line."""
    for name, value in options.items():
        if isinstance(value, Secret):
            continue
        if is_secret(name) and value:
            yield name, f"is a secret, and stands here in plain text: {HOW_TO_WRITE_SECRETS}"
        elif _IN_URL.search(value):
            yield name, f"has a password in it: give it in an option of its own, or {HOW_TO_WRITE_SECRETS}"
