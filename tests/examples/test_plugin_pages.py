"""What the pages about plugins show is what the examples hold, and what they say to write runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "write-a-plugin.md"
SUITES = ROOT / "docs" / "reference" / "testing-suites.md"


class Excerpt(NamedTuple):
    file: str
    text: str


EXCERPTS = [
    Excerpt(file, text)
    for file, text in re.findall(r"^```python excerpt (\S+)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
]
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", SUITES.read_text(), re.MULTILINE | re.DOTALL)


def test_the_guide_shows_each_example() -> None:
    examples = {path.name for path in (ROOT / "examples").iterdir() if (path / "pyproject.toml").is_file()}
    assert {excerpt.file.split("/")[1] for excerpt in EXCERPTS} == examples


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda excerpt: excerpt.file)
def test_an_excerpt_is_what_the_file_says(excerpt: Excerpt) -> None:
    # The guide's blocks begin at the margin, where Python can read them by themselves.
    found = (ROOT / excerpt.file).read_text()
    assert any(textwrap.indent(textwrap.dedent(excerpt.text), indent) in found for indent in ("", " " * 4, " " * 8)), (
        excerpt.text
    )


def test_every_suite_on_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    assert len(PROGRAMS) >= 5
    for number, program in enumerate(PROGRAMS):
        (tmp_path / f"test_suite_{number}.py").write_text(program)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5_000:]


def test_every_public_suite_is_on_the_page() -> None:
    page = SUITES.read_text()
    suites = [
        f"linn.testing.{path.stem}.{name}"
        for path in sorted((ROOT / "linn" / "testing").glob("*.py"))
        for name in re.findall(r"^class (\w+(?:Conformance|Machine))\b", path.read_text(), re.MULTILINE)
    ]
    assert len(suites) >= 7
    assert [suite for suite in suites if f"`{suite}`" not in page] == []
