"""Spark pipelines are a service like any other."""

from __future__ import annotations

import sys
from pathlib import PurePath

import pytest

from linn.spark_plugin.service.plugin import linn_register_service
from linn.testing.services import ServiceConformance, ServiceHarness
from linn.testing.sim_programs import SimPrograms
from tests.spark.scripted_driver import STREAM, ScriptedDriver, java


def _install(programs: SimPrograms) -> None:
    programs.install("java", java)
    programs.install(PurePath(sys.executable).name, ScriptedDriver().main)


class TestSpark(ServiceConformance):
    @pytest.fixture
    def harness(self) -> ServiceHarness:
        return ServiceHarness(linn_register_service(), STREAM, install=_install)
