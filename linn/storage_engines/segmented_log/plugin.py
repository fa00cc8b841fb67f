"""The plugin that brings the engine `segmented-log`."""

from __future__ import annotations

from linn.core.hookspecs import hookimpl
from linn.core.storage import EngineKind
from linn.storage_engines.segmented_log.engine import SegmentedLogEngine
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings


@hookimpl
def linn_register_engine() -> EngineKind:
    """Batches in files, kept over restarts."""
    return EngineKind("segmented-log", SegmentedLogSettings, SegmentedLogEngine)
