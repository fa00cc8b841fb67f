"""The documentation's front page: what it shows runs, and it stays short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from code_block import ROOT, code_blocks

from linn.testing.process import BrokerProcess

PAGE = ROOT / "docs" / "index.md"
URL = "linn://127.0.0.1:5466"
LINES_MAX = 100
PROGRAM_LINES_MAX = 10
TIMEOUT_S = 300


def block(language: str) -> str:
    """The one block of a language."""
    (found,) = [block for block in code_blocks(PAGE) if block.language == language]
    return found.text


def test_its_program_runs_against_a_broker_with_its_configuration(tmp_path: Path) -> None:
    program = block("python")
    assert URL in program
    with BrokerProcess(tmp_path, block("toml")) as broker:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.replace(URL, broker.url)],
            cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'two coffees'\n", "")


def test_it_stays_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
    assert len([line for line in block("python").splitlines() if line]) <= PROGRAM_LINES_MAX
