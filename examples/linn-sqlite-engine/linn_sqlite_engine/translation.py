"""What SQLite raises, as the errors that the port promises."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from linn.core.errors.tree import DiskFull, DiskReadOnly, LogCorrupt, StorageError

_BY_CODE: dict[int, type[StorageError]] = {
    sqlite3.SQLITE_FULL: DiskFull,
    sqlite3.SQLITE_READONLY: DiskReadOnly,
    sqlite3.SQLITE_PERM: DiskReadOnly,
    sqlite3.SQLITE_CORRUPT: LogCorrupt,
    sqlite3.SQLITE_NOTADB: LogCorrupt,
}
_PRIMARY_CODE = 0xFF
"""The low byte of an extended result code."""


@contextmanager
def translated(deed: str, path: str) -> Iterator[None]:
    """Let a `sqlite3.Error` leave as a StorageError that names the file. What was begun is SQLite's to roll back."""
    try:
        yield
    except sqlite3.Error as error:
        kind = _BY_CODE.get(getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE, StorageError)
        raise kind(f"can't {deed} {path}: {error}") from error
