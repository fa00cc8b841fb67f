"""A served store keeps the promises of the port, in simulated and in real time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from served_world import ADDRESS, in_served_world, served

from linn.testing.deterministic import run_simulation
from linn.testing.metadata_stores import MetadataStoreConformance, MetadataStoreHarness, run_in_real_time


class TestServedInASimulation(MetadataStoreConformance):
    @pytest.fixture
    def harness(self) -> MetadataStoreHarness:
        run = in_served_world(partial(run_simulation, 0), "/store", ADDRESS)
        return MetadataStoreHarness(served, run)


class TestServedOverAUnixSocket(MetadataStoreConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> MetadataStoreHarness:
        address = f"unix:{tmp_path}/store.sock"
        run = in_served_world(run_in_real_time, str(tmp_path), address)
        return MetadataStoreHarness(partial(served, address=address), run)
