"""Both engines keep the port's promises, on a real disk and on a simulated one."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_cases import dram_in, real, segmented_log_in, simulated
from trio.testing import MockClock

from linn.testing.engines import EngineConformance, EngineHarness


class TestDramOnARealDisk(EngineConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> EngineHarness:
        return dram_in(*real(tmp_path))


class TestDramSimulated(EngineConformance):
    @pytest.fixture
    def harness(self, autojump_clock: MockClock) -> EngineHarness:
        return dram_in(*simulated())


class TestSegmentedLogOnARealDisk(EngineConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> EngineHarness:
        return segmented_log_in(*real(tmp_path))


class TestSegmentedLogSimulated(EngineConformance):
    @pytest.fixture
    def harness(self, autojump_clock: MockClock) -> EngineHarness:
        return segmented_log_in(*simulated())
