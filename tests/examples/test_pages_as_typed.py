"""The README, the tutorial and the how-to pages run as they stand, from linn's wheel in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from code_block import ROOT, CodeBlock, code_blocks
from database_servers import postgres_server
from fresh_environment import WheelEnvironment, build_wheel
from page_reader import PageReader, file_of, installed_by, typed

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted((DOCS / "tutorial").glob("*.md")), *sorted((DOCS / "how-to").glob("*.md"))]
PROGRAMS = {page: [block for block in code_blocks(page) if block.language == "python"] for page in PAGES}
RUN = [page for page in PAGES if [*typed(page)]]
VARIABLES = {"host": "PGHOST", "user": "PGUSER", "dbname": "PGDATABASE"}
"""PostgreSQL's own names of what a connection string says."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> WheelEnvironment:
    """An environment with everything that any page says to install."""
    extras, others = (set().union(*sets) for sets in zip(*map(installed_by, PAGES), strict=True))
    return WheelEnvironment(tmp_path_factory.mktemp("everything") / ".venv", wheel, extras, others)


@pytest.fixture
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A page, with the server that it needs."""
    page: Path = request.param
    extras, _ = installed_by(page)
    if "postgres" not in extras:
        yield page
        return
    if shutil.which("psql") is None:
        pytest.skip("PostgreSQL's programs are not installed: apt-get install postgresql")
    with postgres_server() as conninfo:
        for word in conninfo.split():
            name, _, value = word.partition("=")
            monkeypatch.setenv(VARIABLES[name], value)
        yield page


@pytest.mark.parametrize("page", RUN, ids=name_of, indirect=True)
def test_a_page_runs_unchanged(wheel: Path, tmp_path: Path, page: Path) -> None:
    extras, others = installed_by(page)
    environment = WheelEnvironment(tmp_path / ".venv", wheel, extras, others | {"hatchling"})
    with PageReader(tmp_path, environment) as reader:
        assert ".venv" in reader.type("python -c 'import linn; print(linn.__file__)'")
        assert reader.read(page)


def test_every_program_passes_mypy_strictly(everything: WheelEnvironment, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    for page, programs in PROGRAMS.items():
        folder = tmp_path / name_of(page).replace("/", "-")
        folder.mkdir()
        files = [block for block in programs if file_of(block)]
        for block in files:
            (folder / block.title).write_text(block.text)
        if files:
            done = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--python-executable={everything.python}",
                 f"--cache-dir={tmp_path / 'cache'}", *[block.title for block in files]],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
            )  # fmt: skip
            assert done.returncode == 0, f"{name_of(page)}\n{done.stdout}{done.stderr}"


BLOCKS = [block for page in PAGES for block in code_blocks(page)]
SHOWN = ("text", "json")
"""Languages of what is only to be looked at."""
PIECES = ("cpp", "ts")
"""Languages of which a page has one program in pieces, and says so; tests/clients compiles them."""


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_is_run_or_names_its_file(block: CodeBlock) -> None:
    assert block.title or block.language in ("sh", "console", *SHOWN, *PIECES)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_every_python_block_is_a_file(block: CodeBlock) -> None:
    assert re.fullmatch(r"[\w/-]+\.py", block.title)


@pytest.mark.parametrize("block", [block for block in BLOCKS if file_of(block)], ids=str)
def test_the_name_of_a_file_is_in_the_text_too(block: CodeBlock) -> None:
    assert f"`{file_of(block)}`" in block.page.read_text(
        encoding="utf-8"
    )  # Not everybody who shows a page shows titles.


def test_the_pages_that_begin_with_linn_are_run() -> None:
    first = {"README.md", *(f"docs/tutorial/{name}.md" for name in ("first-five-minutes", "python-client", "demo"))}
    assert first <= {*map(name_of, RUN)}
