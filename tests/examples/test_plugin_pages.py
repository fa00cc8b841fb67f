"""The pages about plugins show the code of the examples, and the code that they say to write runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from code_block import CodeBlock, code_blocks

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "write-a-plugin.md"
REDACT = ROOT / "examples" / "linn-redact" / "README.md"
SUITES = ROOT / "docs" / "reference" / "testing-suites.md"


EXCERPTS = [block for block in code_blocks(GUIDE) if block.title.startswith("examples/")]
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", SUITES.read_text(), re.MULTILINE | re.DOTALL)


def test_the_guide_shows_each_example() -> None:
    examples = {path.name for path in (ROOT / "examples").iterdir() if (path / "pyproject.toml").is_file()}
    assert {excerpt.title.split("/")[1] for excerpt in EXCERPTS} == examples


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda excerpt: excerpt.title)
def test_an_excerpt_equals_the_file(excerpt: CodeBlock) -> None:
    # The guide's blocks begin at the margin, where Python can read them by themselves.
    found = (ROOT / excerpt.title).read_text()
    assert any(textwrap.indent(textwrap.dedent(excerpt.text), indent) in found for indent in ("", " " * 4, " " * 8)), (
        excerpt.text
    )


def test_the_settings_of_an_interceptor_are_those_of_its_readme() -> None:
    (shown,) = [block.text for block in code_blocks(GUIDE) if block.title.endswith("linn-redact is installed")]
    (whole,) = [block.text for block in code_blocks(REDACT) if block.language == "toml"]  # A test there checks it.
    assert set(shown.splitlines()) <= set(whole.splitlines())


def test_every_suite_on_the_page_runs_unchanged(tmp_path: Path) -> None:
    assert len(PROGRAMS) >= 5
    for number, program in enumerate(PROGRAMS):
        (tmp_path / f"test_suite_{number}.py").write_text(program)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
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
