"""The engines and environments that the suites run on: settings so small that every boundary is crossed."""

from __future__ import annotations

from pathlib import Path

from linn.core.env.env import Env
from linn.core.env.real.env import RealEnv
from linn.core.log.storage import StorageEngine
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.settings import DramSettings
from linn.storage_engines.segmented_log.engine import SegmentedLogEngine
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings
from linn.testing.engines import EngineHarness
from linn.testing.sim_env import SimEnv

SMALL_DRAM = DramSettings(memory_bytes_max=10_000, scratch_bytes_max=4096)
SMALL_SEGMENTS = SegmentedLogSettings(segment_bytes_max=4096, index_interval_bytes=512)


def dram_in(folder: str, env: Env) -> EngineHarness:
    return EngineHarness(env, lambda env: DramEngine(folder, SMALL_DRAM, env))


def segmented_log_in(folder: str, env: Env) -> EngineHarness:
    def make(env: Env) -> StorageEngine:
        return SegmentedLogEngine(folder, SMALL_SEGMENTS, env)

    return EngineHarness(env, make)


def real(folder: Path) -> tuple[str, Env]:
    return str(folder / "storage"), RealEnv()


def simulated(seed: int = 0) -> tuple[str, Env]:
    return "storage", SimEnv(seed)
