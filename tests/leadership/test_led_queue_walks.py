"""Over any failovers a replicated queue keeps what it has confirmed, and repeats nothing that it must not."""

from __future__ import annotations

import pytest
from led_queue_walk import walk

SEEDS = 240
CHUNKS = 6


@pytest.mark.parametrize("chunk", [pytest.param(0, marks=pytest.mark.quick), *range(1, CHUNKS)])
def test_a_queue_keeps_what_it_has_confirmed_over_failovers(chunk: int) -> None:
    for seed in range(chunk * SEEDS // CHUNKS, (chunk + 1) * SEEDS // CHUNKS):
        walk(seed)


@pytest.mark.soak(seeds=5_000, chunk=100)
def test_a_queue_keeps_what_it_has_confirmed_over_many_more_failovers(seeds: range) -> None:
    for seed in seeds:
        walk(seed)
