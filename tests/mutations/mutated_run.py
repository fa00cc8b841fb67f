"""The tests' side: each mutation in a process of its own, and what its named seed must have come to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mutation import Mutation
from observation import Observation
from process_of_its_own import RUN_S_MAX


class Mutations:
    """`python tests/mutations serve`: it has imported what is not linn's, and forks for each request."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Mutations:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=RUN_S_MAX)

    def run(self, simulation: str, seeds: list[int], mutation: Mutation | None = None) -> list[Observation]:
        """Run seeds in a process of their own, with the bug if there is one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"simulation": simulation, "seeds": seeds, "name": mutation and mutation.name}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        assert found is not None, f"no answer within {RUN_S_MAX} s, or a failure that standard error tells"
        return [Observation(**each) for each in found]


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


def check_pass(mutations: Mutations, simulation: str, chosen: Iterable[Mutation]) -> None:
    """Assert that a simulation's seeds find nothing where no bug is planted."""
    seeds = sorted({mutation.seed for mutation in chosen if mutation.simulation == simulation})
    answers = mutations.run(simulation, seeds)
    failed = {seed: str(seen) for seed, seen in zip(seeds, answers, strict=True) if seen.symptoms}
    assert failed == {}, f"{simulation} fails without any bug"
