"""Look for the seeds that catch planted bugs.

Prints the first seed that catches each bug: its own, if that still does. A seed that fails for another reason is shown.
"""

from __future__ import annotations

import argparse
import sys

from catalogue import ALL
from mutated_run import is_caught, symptoms_of
from mutation import Mutation

SEED_S_MAX = 60
"""Time limit of one seed."""


def find(mutation: Mutation, seeds: range) -> bool:
    """Print the first seed that catches the bug, and the first failure of each other kind before it."""
    kinds: set[str] = set()
    for seed in [mutation.seed, *seeds]:
        [symptoms] = symptoms_of(mutation.simulation, [seed], mutation, SEED_S_MAX)
        if is_caught(mutation, symptoms):
            print(f"{mutation.name}: seed {seed}{' as before' if seed == mutation.seed else ''}", flush=True)
            return True
        text = "; ".join(symptoms)[:300]
        if symptoms and text[:30] not in kinds:
            kinds.add(text[:30])
            print(f"{mutation.name}: seed {seed} fails with {text}", flush=True)
    print(f"{mutation.name}: no seed up to {seeds[-1]} catches it", flush=True)
    return False


def main() -> int:
    names = sorted(mutation.name for mutation in ALL)
    parser = argparse.ArgumentParser("mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a bug of the catalogue (default: all)")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 200), metavar=("FIRST", "LAST"))
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(names)):
        parser.error(f"no bug is named {unknown}; there are {names}")
    first, last = arguments.seeds
    chosen = [mutation for mutation in ALL if mutation.name in (arguments.names or names)]
    found = [find(mutation, range(first, last + 1)) for mutation in chosen]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
