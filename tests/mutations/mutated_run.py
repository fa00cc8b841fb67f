"""The tests' side: each mutation in a process of its own, and what its named seed must have come to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mutation import Mutation
from observation import Observation

RUN_S_MAX = 100
"""Of one process; a bug that makes a run endless is not caught."""


def mutations(*arguments: str) -> list[Observation]:
    """Run `python tests/mutations` with these arguments."""
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent), *arguments], capture_output=True, text=True, timeout=RUN_S_MAX
    )
    assert process.returncode == 0, process.stderr
    found = [json.loads(line) for line in process.stdout.splitlines()]
    return [Observation(each["symptoms"], each["seconds"]) for each in found]


def check_caught(mutation: Mutation, seen: Observation) -> None:
    """Assert that the run failed, and for the reason that the catalogue names."""
    assert mutation.says, f"{mutation.name} does not say how it is caught"
    again = f'`python tests/mutations reseed "{mutation.name}"` looks for another seed'
    assert seen.symptoms, f'"{mutation.name}" survives seed {mutation.seed} of "{mutation.simulation}"; {again}'
    assert any(mutation.says in symptom for symptom in seen.symptoms), (
        f'"{mutation.name}" is to fail with "{mutation.says}" and fails with: {seen}; {again}'
    )


def simulations_of(chosen: Iterable[Mutation]) -> list[str]:
    """The simulations that find them."""
    return sorted({mutation.simulation for mutation in chosen})


def check_pass(simulation: str, chosen: Iterable[Mutation]) -> None:
    """Assert that a simulation's seeds find nothing where no bug is planted."""
    seeds = sorted({mutation.seed for mutation in chosen if mutation.simulation == simulation})
    answers = mutations("pass", "--simulation", simulation, "--seeds", ",".join(map(str, seeds)))
    failed = {seed: str(seen) for seed, seen in zip(seeds, answers, strict=True) if seen.symptoms}
    assert failed == {}, f"{simulation} fails without any bug"
