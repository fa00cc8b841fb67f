"""A new plugin passes its tests with linn from its wheel and the extra `testing`; nothing else is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from fresh_environment import WheelEnvironment, build_wheel

from linn.cli.commands.plugin_new import KINDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    """linn's wheel, and what its extra `testing` asks for."""
    folder = tmp_path_factory.mktemp("installed")
    return WheelEnvironment(folder / "environment", build_wheel(ROOT, folder / "wheels"), ["testing"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_tests_with_the_extras_packages(
    environment: WheelEnvironment, tmp_path: Path, kind: str
) -> None:
    environment.run("-m", "linn", "plugins", "new", "tape", "--kind", kind, cwd=tmp_path)
    folder = tmp_path / "linn-tape"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert [each.partition(">")[0] for each in project["optional-dependencies"]["dev"]] == ["linn[testing]"]
    printed = environment.run("-m", "pytest", cwd=folder)
    assert re.search(r"\d+ passed", printed)
    assert "skipped" not in printed


def test_the_environment_has_linn_from_the_wheel_and_no_development_packages(
    environment: WheelEnvironment, tmp_path: Path
) -> None:
    code = "import linn, importlib.util as util; print(linn.__file__); print(util.find_spec('mypy'))"
    place, missing = environment.run("-c", code, cwd=tmp_path).splitlines()
    assert Path(place).is_relative_to(environment.python.parents[1])
    assert missing == "None"
