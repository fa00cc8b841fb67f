"""Seeds: those that each tier runs, and those that fail in a soak, with how to run them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def tiered(seeds: Iterable[int], quick: int) -> list[Any]:
    """Mark the seeds below `quick` for that tier. The soak runs many more, with seeds that nobody ran before."""
    return [pytest.param(seed, marks=pytest.mark.quick) if seed < quick else seed for seed in seeds]


def some_faults(faults: Sequence[tuple[str, str]]) -> list[int]:
    """Choose a third of a table of (arrow, fault), with the first of each arrow and of each fault; the soak has all."""
    firsts = {each: seed for seed, pair in reversed([*enumerate(faults)]) for each in pair}
    return sorted({*firsts.values(), *(seed for seed in range(len(faults)) if seed % 3 == seed // 6 % 3)})


def failures(run: Callable[[int], object], seeds: Iterable[int], program: str) -> dict[int, str]:
    """Run seeds; return the first line of each error, by seed, with the command that replays it."""
    failed: dict[int, str] = {}
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            failed[seed] = f"{str(error).splitlines()[0][:300]} (python {program} {seed})"
    return failed
