"""Completion scripts: shells take them, and linn answers what they ask."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.parametrize("shell", CHECKS)
def test_a_script_is_one_of_its_shell(within, tmp_path: Path, shell: str) -> None:
    script = within("completion", shell).stdout
    assert "_LINN_COMPLETE=complete_" in script
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    file = tmp_path / "completion"
    file.write_text(script)
    checked = subprocess.run([*CHECKS[shell], str(file)], capture_output=True, text=True, timeout=30)
    assert (checked.stderr, checked.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("linn gr", ["groups"]),
        ("linn groups re", ["reset"]),
        ("linn publish t --ro", ["--routing-key"]),
        ("linn nothing-like-it", []),
    ],
)
def test_bash_is_offered_what_could_come_next(words: str, offered: list[str]) -> None:
    question = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_LINN_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "linn"], env=os.environ | question, capture_output=True, text=True, timeout=30
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_real_bash_completes_a_command(within, tmp_path: Path) -> None:
    (tmp_path / "linn").write_text(f'#!/bin/sh\nexec {sys.executable} -m linn "$@"\n')
    (tmp_path / "linn").chmod(0o755)
    (tmp_path / "script").write_text(within("completion", "bash").stdout)
    ask = (
        f"source {tmp_path}/script; COMP_WORDS=(linn que); COMP_CWORD=1; _linn_completion linn; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout == "queues\n"
