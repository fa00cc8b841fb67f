"""Spark's log of a folder of files, `_spark_metadata`, which names the committed files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

LOG = "_spark_metadata"
_COMPACT = ".compact"


class _Entry(msgspec.Struct):
    """Line of the log."""

    path: str
    action: str = "add"


_read_entry = msgspec.json.Decoder(_Entry).decode


def committed_urls(names: Iterable[str], read_text: Callable[[str], str]) -> list[str]:
    """Return the URLs of the committed files, from the names in the log's folder and a function that reads a file
    there.

    Raises ValueError: the log is malformed; errors of `read_text`.
    """
    logs = {int(name.removesuffix(_COMPACT)): name for name in names if name[:1].isdecimal()}
    # A compact file holds all entries up to its number.
    compact = max((number for number, name in logs.items() if name.endswith(_COMPACT)), default=0)
    found: dict[str, None] = {}
    for number, name in sorted(logs.items()):
        for line in read_text(name).splitlines()[1:] if number >= compact else ():
            entry = _read_entry(line)
            if entry.action == "add":
                found[entry.path] = None
    return list(found)
