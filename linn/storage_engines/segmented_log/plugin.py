"""The plugin with the engine `segmented-log`."""

from __future__ import annotations

from linn.api import EngineKind, hookimpl
from linn.storage_engines.segmented_log.engine import SegmentedLogEngine
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings


@hookimpl
def linn_register_engine() -> EngineKind:
    """Register the engine `segmented-log`: batches in files that survive restarts."""
    return EngineKind("segmented-log", SegmentedLogSettings, SegmentedLogEngine)
