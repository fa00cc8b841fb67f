"""The front pages of documentation and repository: what they show runs, and the first screen stays short."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from code_block import ROOT, code_blocks

from linn.testing.process import BrokerProcess

PAGE = ROOT / "docs" / "index.md"
URL = "linn://127.0.0.1:5466"
LINES_MAX = 100
PROGRAM_LINES_MAX = 10
FIRST_SCREEN_LINES_MAX = 60
FIRST_SCREEN = ("pip install", "benchmarks/peers.svg", "#where-another-was-faster", "pictures/queue-to-stream.svg")
CARDS = ("A work queue", "An event log", "Exactly once into a database", "A topic into a lake")
RECORDING = ROOT / "docs" / "pictures" / "queue-to-stream.svg"
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


@pytest.mark.parametrize("page", [PAGE, ROOT / "README.md"], ids=lambda page: page.name)
def test_the_first_screen_has_an_install_line_a_chart_a_recording_and_four_cards(page: Path) -> None:
    begins = "\n".join(page.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN_LINES_MAX])
    places = [begins.find(part) for part in FIRST_SCREEN]
    assert -1 not in places
    assert places == sorted(places)
    assert [card for card in CARDS if f"**{card}**" not in begins] == []


def test_the_recording_shows_what_its_commands_print(tmp_path: Path) -> None:
    """Its commands run on a broker, and the picture has each of them with its output."""
    shown = unescape(re.sub(r"<[^>]*>", "", RECORDING.read_text(encoding="utf-8"))).replace("\xa0", " ").splitlines()
    played = runpy.run_path(str(ROOT / "docs" / ".site" / "queue_to_stream.py"))
    with BrokerProcess(tmp_path) as broker:
        environment = {**os.environ, "LINN_URL": broker.url, "PYTHONPATH": str(ROOT), "COLUMNS": "82"}
        for _, command in played["COMMANDS"]:
            typed = command.replace("linn ", f"{sys.executable} -m linn ", 1)
            done = subprocess.run(
                typed, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
            )
            assert done.returncode == 0, done.stderr
            assert command in shown
            assert [line for line in done.stdout.splitlines() if line[:1] not in "┏┃┡│└" and line not in shown] == []
