"""Runs of a simulation in a process of their own, with a bug planted or without, and what they must have come to."""

from __future__ import annotations

import logging
import multiprocessing
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection

from mutation import Mutation
from planting import check_planted, plant
from simulations import SIMULATIONS, TESTS, Run

RUN_S_MAX = 600
"""Time limit of one process; a bug that makes a run endless is not caught."""

_OURS = (f"{TESTS}/", f"{TESTS.parent / 'linn'}/")
# What a run imports besides linn is imported once: it takes longer to import than most seeds take to run.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["anyio", "capnp", "hypothesis.stateful", "msgspec", "pluggy", "pytest", "trio.testing"]
)


def symptoms_of(
    simulation: str, seeds: list[int], mutation: Mutation | None = None, seconds_max: int = RUN_S_MAX
) -> list[list[str]]:
    """Run seeds in one new process, as counters of a process may be part of a run. Return the errors of each seed.

    Raises EOFError: the process failed, as its standard error tells.
    """
    reading, writing = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_run, args=(writing, simulation, seeds, mutation))
    with reading:
        with writing:
            process.start()
        try:
            if not reading.poll(seconds_max):
                return [[f"no end in {seconds_max} s"] for _ in seeds]
            answer: list[list[str]] = reading.recv()
            return answer
        finally:
            process.kill()
            process.join()


def _run(answer: Connection, simulation: str, seeds: list[int], mutation: Mutation | None) -> None:
    # A run makes the broker log errors, which nobody reads here; "broker" listens for them.
    logging.getLogger().addHandler(logging.NullHandler())
    if mutation is not None:
        plant(mutation)
    run = SIMULATIONS[simulation]()
    if mutation is not None:
        check_planted(mutation)
    answer.send([observed(run, seed) for seed in seeds])


def observed(run: Run, seed: int) -> list[str]:
    """Run one seed and return its errors as texts; empty where it passed."""
    try:
        run(seed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [_symptom(leaf) for leaf in _leaves(error)]
    return []


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _symptom(error: BaseException) -> str:
    """The type and the text, with an invariant's name; of an error without a text, the last of our lines."""
    text = str(error)
    if not text:
        frames = traceback.extract_tb(error.__traceback__)
        last = ([frame for frame in frames if frame.filename.startswith(_OURS)] or frames)[-1]
        text = f"{last.name}: {last.line}"
    named = f"[{error.name}] " if isinstance(error, AssertionError) and hasattr(error, "name") else ""
    return f"{type(error).__name__}: {named}{text}"


def is_caught(mutation: Mutation, symptoms: list[str]) -> bool:
    """Whether a run failed for the reason that the catalogue names."""
    return any(mutation.says in symptom for symptom in symptoms)


def check_caught(mutation: Mutation, symptoms: list[str]) -> None:
    """Assert that a run failed, and for the reason that the catalogue names."""
    again = f'`python tests/mutations "{mutation.name}"` looks for another seed'
    assert symptoms, f'"{mutation.name}" survives seed {mutation.seed} of "{mutation.simulation}"; {again}'
    assert is_caught(mutation, symptoms), (
        f'"{mutation.name}" is to fail with "{mutation.says}" and fails with: {"; ".join(symptoms)[:300]}; {again}'
    )
