"""Seeds of a soak: those that fail, and how to run them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def failures(run: Callable[[int], object], seeds: Iterable[int], program: str) -> dict[int, str]:
    """Run seeds; return the first line of each error, by seed, with the command that replays it."""
    failed: dict[int, str] = {}
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            failed[seed] = f"{str(error).splitlines()[0][:300]} (python {program} {seed})"
    return failed
