"""The example plugins install into an environment that never saw them, pass their tests there, and serve."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from fresh_environment import FreshEnvironment

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))


class Example(NamedTuple):
    name: str
    folder: Path
    environment: FreshEnvironment


@pytest.fixture(scope="module", params=NAMES)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A copy of an example, installed in an environment of its own."""
    folder = tmp_path_factory.mktemp(request.param) / request.param
    shutil.copytree(EXAMPLES / request.param, folder, ignore=shutil.ignore_patterns("__pycache__"))
    environment = FreshEnvironment(folder.parent / "environment")
    environment.install(folder)
    return Example(request.param, folder, environment)


def test_examples_exist() -> None:
    assert NAMES == [
        "linn-geo-exchange",
        "linn-htpasswd",
        "linn-kafka-format",
        "linn-own-names",
        "linn-redact",
        "linn-sqlite-engine",
        "linn-youngest-first",
    ]


def test_an_installed_example_passes_its_own_tests(example: Example) -> None:
    printed = example.environment.run("-m", "pytest", cwd=example.folder)
    assert re.search(r"\d+ passed", printed)
    assert "skipped" not in printed


def test_linn_finds_the_example_by_itself(example: Example) -> None:
    listed = json.loads(example.environment.run("-m", "linn", "plugins", "list", "--json", cwd=example.folder))
    assert example.name in json.dumps(listed)


def test_the_configuration_in_the_readme_is_one(example: Example) -> None:
    readme = (example.folder / "README.md").read_text()
    blocks = re.findall(r"^```toml[^\n]*\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        (example.folder / "readme.toml").write_text(block)
        example.environment.run("-m", "linn", "check", "readme.toml", cwd=example.folder)
