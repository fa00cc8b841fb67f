"""Each bug of the catalogue is caught by its seed, and by nothing but the bug."""

from __future__ import annotations

import pytest
from catalogue import ALL
from mutated_run import check_caught, symptoms_of
from mutation import Mutation


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_named_seed_catches(mutation: Mutation) -> None:
    [symptoms] = symptoms_of(mutation.simulation, [mutation.seed], mutation)
    check_caught(mutation, symptoms)


@pytest.mark.parametrize("simulation", sorted({mutation.simulation for mutation in ALL}))
def test_without_a_bug_the_seeds_pass(simulation: str) -> None:
    seeds = sorted({mutation.seed for mutation in ALL if mutation.simulation == simulation})
    assert symptoms_of(simulation, seeds) == [[] for _ in seeds]
