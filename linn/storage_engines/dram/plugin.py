"""The plugin with the engine `dram`."""

from __future__ import annotations

from linn.api import EngineKind, hookimpl
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.settings import DramSettings


@hookimpl
def linn_register_engine() -> EngineKind:
    """Register the engine `dram`: batches in memory, lost when the broker ends."""
    return EngineKind("dram", DramSettings, DramEngine)
