"""Run seeds with a bug planted, or without.

    python tests/mutations list
    python tests/mutations run NAME                 the named seed
    python tests/mutations find NAME --seeds 0-200  the first seed that catches it
    python tests/mutations reseed                   a new seed for each bug that its seed no longer catches
    python tests/mutations pass --simulation "log lives" --seeds 3,10-20
    python tests/mutations serve

`run` and `pass`, which plants nothing, print one line of JSON per seed. `serve` answers lines of JSON, for tests.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from dataclasses import asdict
from typing import Any

from catalogue import CATALOGUE, rewrite_seed
from mutation import Mutation
from observation import Observation, observed
from planting import check_planted, plant
from process_of_its_own import RUN_S_MAX, in_a_child
from simulations import SIMULATIONS, Run

SEEDS = "0-200"
SEED_S_MAX = 60
"""A seed that takes longer is given up."""


def seeds_of(text: str) -> list[int]:
    """`3,10-20` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def prepared(mutation: Mutation | None, simulation: str) -> Run:
    """A run of this process, with the bug."""
    if mutation is not None:
        plant(mutation)
    run = SIMULATIONS[simulation]()
    if mutation is not None:
        check_planted(mutation)
    # What the broker says of the faults of a run is of no interest here, but "broker" listens for errors.
    logging.getLogger().addHandler(logging.NullHandler())
    return run


def find(run: Run, says: str, seeds: list[int]) -> int | None:
    """The first seed that fails with these words. Seeds that fail otherwise are shown, one of each kind."""
    kinds: set[str] = set()
    for seed in seeds:
        answer = in_a_child(lambda seed=seed: asdict(observed(run, seed)), SEED_S_MAX)  # type: ignore[misc]
        seen = Observation(**answer) if answer is not None else Observation([f"no end in {SEED_S_MAX} s"], SEED_S_MAX)
        caught = any(says in symptom for symptom in seen.symptoms)
        if caught or (seen.symptoms and str(seen)[:30] not in kinds):
            kinds.add(str(seen)[:30])
            print(f"seed {seed} {'catches it' if caught else 'fails'}, {seen.seconds:.2f} s: {seen}", flush=True)
        if caught:
            return seed
    print(f"none of the seeds {seeds[0]} to {seeds[-1]} catches it")
    return None


def reseed(mutation: Mutation, seeds: list[int]) -> bool:
    """Keep the seed where it still catches the bug; else write the first that does into the catalogue."""
    print(f"{mutation.name}:", flush=True)
    seed: int | None = in_a_child(
        lambda: find(prepared(mutation, mutation.simulation), mutation.says, [mutation.seed, *seeds])
    )
    if seed is not None and seed != mutation.seed:
        rewrite_seed(mutation, seed)
    return seed is not None


def serve() -> None:
    """Answer each line, a request, by a line: what its seeds came to, or null.

    Each request is one child, which alone imports linn. What else a run imports is there by then: it takes longer to
    import than most seeds take to run.
    """
    for name in ("anyio", "capnp", "hypothesis.stateful", "msgspec", "pluggy", "pytest", "trio.testing"):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)

        def answer(request: dict[str, Any] = request) -> list[dict[str, Any]]:
            mutation = CATALOGUE[request["name"]] if request["name"] is not None else None
            run = prepared(mutation, request["simulation"])
            return [asdict(observed(run, seed)) for seed in request["seeds"]]

        print(json.dumps(in_a_child(answer, RUN_S_MAX)), flush=True)


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("verb", choices=["list", "run", "find", "reseed", "pass", "serve"])
    parser.add_argument("name", nargs="?", choices=sorted(CATALOGUE), metavar="NAME")
    parser.add_argument("--simulation", choices=sorted(SIMULATIONS))
    parser.add_argument("--seeds", type=seeds_of)
    parser.add_argument("--says", help="for find: the words that the failure has, where not those of the catalogue")
    arguments = parser.parse_args()
    if arguments.verb in ("run", "find") and arguments.name is None:
        parser.error(f"{arguments.verb} needs a NAME: see list")
    if arguments.verb == "pass" and (arguments.name or not arguments.simulation or not arguments.seeds):
        parser.error("pass needs --simulation and --seeds, and no NAME")
    return arguments


def main() -> int:
    arguments = arguments_of(
        argparse.ArgumentParser("mutations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    )
    mutation: Mutation | None = CATALOGUE.get(arguments.name)
    if arguments.verb == "list":
        for each in CATALOGUE.values():
            print(f"{each.name} ({each.simulation}, seed {each.seed}): {each.breaks}")
        return 0
    if arguments.verb == "serve":
        serve()
        return 0
    if arguments.verb == "reseed":
        chosen = [each for each in CATALOGUE.values() if mutation in (None, each)]
        kept = [reseed(each, arguments.seeds or seeds_of(SEEDS)) for each in chosen]
        return 0 if all(kept) else 1
    run = prepared(mutation, arguments.simulation or (mutation.simulation if mutation is not None else ""))
    if arguments.verb == "find":
        assert mutation is not None
        says = arguments.says if arguments.says is not None else mutation.says
        return 0 if find(run, says, arguments.seeds or seeds_of(SEEDS)) is not None else 1
    for seed in arguments.seeds or [mutation.seed if mutation is not None else 0]:
        print(json.dumps({"seed": seed, **asdict(observed(run, seed))}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
