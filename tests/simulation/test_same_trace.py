"""One seed is one run: in every process, whatever its hash seed, the same events at the same times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SEEDS = ("2", "3", "11", "16")


def traces(hash_seed: str, seeds: tuple[str, ...]) -> list[str]:
    """Traces of the runs in a separate process: one hash each, of all events and of all changes of the disk."""
    command = [sys.executable, str(Path(__file__).with_name("simulated_run.py")), *seeds]
    process = subprocess.run(command, capture_output=True, text=True, env={"PYTHONHASHSEED": hash_seed}, timeout=300)
    assert process.returncode == 0, process.stderr
    return sorted(process.stdout.splitlines())


def test_a_seed_gives_the_same_trace_in_every_process_independent_of_earlier_runs() -> None:
    first = traces("1", SEEDS)
    assert len({line.rpartition(" ")[2] for line in first}) == len(SEEDS)
    assert traces("4242", SEEDS[::-1]) == first
