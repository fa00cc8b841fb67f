"""Processes started by tests end with them, and receive Ctrl-C however the tests were started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import pytest, signal, subprocess, sys

def child():
    code = "import time; print('up', flush=True); time.sleep(60)"
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout.readline() == b"up\\n"
    return started
"""
LEAVES = (
    CHILD
    + """
def test_fails():
    left = child()
    assert left is None

def test_passes_but_leaves_one(kept=[]):
    kept.append(child())

@pytest.fixture
def ends():
    started = []
    yield started
    for each in started:
        each.kill()
        each.communicate()

def test_leaves_the_end_to_its_fixture(ends):
    ends.append(child())

def test_is_innocent():
    import gc
    gc.collect()
"""
)
INTERRUPTS = (
    CHILD
    + """
def test_a_child_is_interrupted():
    with child() as started:
        started.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in started.communicate(timeout=300)[1]
"""
)
IGNORING_SIGINT = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Ignore SIGINT like nohup, and like a shell for a script's background commands."""


def run(folder: Path, text: str, *before: str) -> str:
    """Run tests with pytest; returns its output."""
    (folder / "test_it.py").write_text(text)
    command = [
        *before,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "processes",
        "-p",
        "no:cacheprovider",
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300).stdout


def test_a_process_that_a_test_leaves_ends_with_it_and_fails_no_other(tmp_path: Path) -> None:
    said = run(tmp_path, LEAVES)
    assert "1 failed, 3 passed, 1 error" in said, said
    assert "the test has left these processes running" in said


@pytest.mark.parametrize("before", [(), IGNORING_SIGINT], ids=["as usual", "ignoring SIGINT"])
def test_a_child_hears_ctrl_c_also_where_the_tests_themselves_do_not(tmp_path: Path, before: tuple[str, ...]) -> None:
    said = run(tmp_path, INTERRUPTS, *before)
    assert "1 passed" in said, said
