"""Each bug of the catalogue is caught by its seed, and by nothing but the bug."""

from __future__ import annotations

import pytest
from mutated_run import Mutations, check_caught, check_pass, simulations_of
from mutation import Mutation
from transaction_mutations import TRANSACTION_MUTATIONS


@pytest.mark.parametrize("mutation", TRANSACTION_MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_named_seed_catches(mutations: Mutations, mutation: Mutation) -> None:
    [seen] = mutations.run(mutation.simulation, [mutation.seed], mutation)
    check_caught(mutation, seen)


@pytest.mark.parametrize("simulation", simulations_of(TRANSACTION_MUTATIONS))
def test_without_a_bug_the_seeds_pass(mutations: Mutations, simulation: str) -> None:
    check_pass(mutations, simulation, TRANSACTION_MUTATIONS)
