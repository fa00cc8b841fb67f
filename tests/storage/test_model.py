"""Both engines against a plain list, in any order of operations."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine_cases import dram_in, real, segmented_log_in, simulated
from hypothesis import HealthCheck, settings

from linn.testing.engines import EngineHarness
from linn.testing.log_machine import PartitionLogMachine

MANY = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(MANY, max_examples=10)


class DramSimulated(PartitionLogMachine):
    def make_harness(self) -> EngineHarness:
        return dram_in(*simulated())


class SegmentedLogSimulated(PartitionLogMachine):
    def make_harness(self) -> EngineHarness:
        return segmented_log_in(*simulated())


class OnARealDisk(PartitionLogMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class DramReal(OnARealDisk):
    def make_harness(self) -> EngineHarness:
        return dram_in(*real(Path(self.folder.name)))


class SegmentedLogReal(OnARealDisk):
    def make_harness(self) -> EngineHarness:
        return segmented_log_in(*real(Path(self.folder.name)))


TestDramSimulated = DramSimulated.TestCase
TestDramSimulated.settings = MANY
TestSegmentedLogSimulated = SegmentedLogSimulated.TestCase
TestSegmentedLogSimulated.settings = MANY
TestDramReal = DramReal.TestCase
TestDramReal.settings = FEW
TestSegmentedLogReal = SegmentedLogReal.TestCase
TestSegmentedLogReal.settings = FEW
