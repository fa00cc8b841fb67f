"""Dotted keys of settings, which name a key inside a table: `spark_sink.schema`, `spark_sink.options."a.b"`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from copy import deepcopy
from typing import Any

_PARTS_MAX = 8
"""Limit of nested tables: twice as many as any setting has."""
_CHARACTERS_MAX = 1024
"""Limit of a key: tomllib takes 10 s for one of 100,000 parts, and four times as long for twice as many."""


def key_path(key: str) -> tuple[str, ...]:
    """The parts of a dotted key; the key itself as the only part if it is not dotted or not a valid TOML key."""
    if "." not in key or len(key) > _CHARACTERS_MAX:
        return (key,)
    try:
        found: Any = tomllib.loads(f"{key} = 0")
    except (tomllib.TOMLDecodeError, RecursionError):
        return (key,)
    parts: list[str] = []
    while isinstance(found, dict) and len(found) == 1 and len(parts) < _PARTS_MAX:
        ((part, found),) = found.items()
        parts.append(part)
    return tuple(parts) if found == 0 else (key,)


def without_dots(changes: Mapping[str, Any], existing: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of whole settings: a dotted key changes one key of the existing table, and null removes it.

    A dotted key whose table is not a table stays unchanged, and is then an unknown key.
    """
    found: dict[str, Any] = {}
    for key, value in changes.items():
        name, *inner = key_path(key)
        before = found.get(name, existing.get(name)) if inner else None
        table = {} if before is None else deepcopy(before)
        if inner and put(table, inner, value):
            found[name] = table
        else:
            found[key] = value
    return found


def put(table: Any, path: Sequence[str], value: Any) -> bool:
    """Set the value at a path of tables, creating missing ones; null removes the value. False: the path leads through a
    value that is not a table."""
    *tables, last = path
    for name in tables:
        if not isinstance(table, MutableMapping):
            return False
        table = table.setdefault(name, {})
    if not isinstance(table, MutableMapping):
        return False
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value
    return True
