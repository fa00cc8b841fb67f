"""A program that is killed at any point has given each record its effect once, with its mark, or not at all."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from killed_program import KINDS, PLACE

from linn.participants import Mark

KILLS = 50
STEPS_MAX = 80
PROGRAM = Path(__file__).parent / "killed_program.py"


def run_and_kill(kind: str, folder: Path, steps: int) -> str:
    """Run the program, and kill it while it goes on after so many steps; the last step that was seen."""
    command = [sys.executable, str(PROGRAM), kind, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        for _ in range(steps):
            seen = process.stdout.read(1)
            assert seen, "the program ended by itself"
        process.kill()
    return seen.decode()


def effects_of(kind: str, folder: Path) -> list[int]:
    """The records whose effects are stored, in order."""

    if kind == "files":
        return sorted(int(line) for path in folder.glob("*.txt") for line in path.read_text().split())
    with closing(sqlite3.connect(folder / "effects.db")) as connection:
        return [row[0] for row in connection.execute("SELECT record FROM effects ORDER BY record")]


@pytest.mark.system
@pytest.mark.parametrize("kind", KINDS)
def test_every_effect_is_there_once_with_its_mark_however_often_the_program_is_killed(
    tmp_path: Path, kind: str
) -> None:
    rng = random.Random(kind)
    seen, marked = set(), 0
    for _ in range(KILLS):
        seen.add(run_and_kill(kind, tmp_path, 1 + rng.randrange(STEPS_MAX)))
        participant, _ = KINDS[kind](tmp_path)
        with closing(participant):
            participant.open()
            participant.begin(PLACE)
            parts = participant.applied(Mark(1, 0, 1 << 40))
            assert effects_of(kind, tmp_path) == [record for first, end in parts for record in range(first, end)]
            marked += len(parts) > 1
    assert seen == {*"bwcd"}, "killed at every kind of point"
    assert marked, "killed while there was a mark above the floor"
