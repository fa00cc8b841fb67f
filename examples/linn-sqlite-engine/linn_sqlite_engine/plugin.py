"""What linn finds by the entry point `sqlite`."""

from __future__ import annotations

from linn.core.log.storage import EngineKind
from linn.core.plugins.hookspecs import hookimpl
from linn_sqlite_engine.engine import SqliteEngine
from linn_sqlite_engine.settings import SqliteSettings


@hookimpl
def linn_register_engine() -> EngineKind:
    """`storage = "sqlite"` in a topic, or a `[storage.NAME]` table."""
    return EngineKind("sqlite", SqliteSettings, SqliteEngine)
