"""Finds the seeds of a simulation that take branches of linn which no others take; needs `pip install coverage`.

    python tests/branches_of_seeds.py tests/cluster/cluster_run.py run_seed 20

runs the seeds below 20, and lists them in the order in which each adds most branches to those before it. Seeds that add
none are left out: they are further draws of the same, and the soak makes those.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import coverage

TESTS = Path(__file__).parent


def branches_of(run: object, seed: int) -> set[tuple[str, int, int]]:
    """Run a seed; return the steps from line to line of linn that it takes, by file."""
    measured = coverage.Coverage(branch=True, source=[str(TESTS.parent / "linn")], data_file=None, config_file=False)
    with measured.collect():
        run(seed)  # type: ignore[operator]
    data = measured.get_data()
    return {(file, *step) for file in data.measured_files() for step in data.arcs(file) or ()}


def main() -> None:
    """Print the seeds with the number of branches that each adds."""
    file, function, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.path[:0] = [str(TESTS), str(TESTS / "broker"), str(file.parent)]
    logging.disable()
    run = getattr(importlib.import_module(file.stem), function)
    left = {seed: branches_of(run, seed) for seed in range(count)}
    while left:
        best = max(left, key=lambda seed: len(left[seed]))
        if not (added := left.pop(best)):
            break
        print(f"{best}: {len(added)}", flush=True)
        left = {seed: branches - added for seed, branches in left.items()}


if __name__ == "__main__":
    main()
