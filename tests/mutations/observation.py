"""The outcome of one run of one seed, in words that a catalogue can name."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from simulations import TESTS, Run

_OURS = (f"{TESTS}/", f"{TESTS.parent / 'linn'}/")


@dataclass(frozen=True)
class Observation:
    """`symptoms` is empty where the seed passed."""

    symptoms: list[str]
    seconds: float
    """Processor time, for display: no verdict depends on it."""

    def __str__(self) -> str:
        return "; ".join(self.symptoms)[:300] or "passed"


def observed(run: Run, seed: int) -> Observation:
    """Run one seed. An interrupt is the user's, and no symptom."""
    started_s = os.times().user
    symptoms: list[str] = []
    try:
        run(seed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        symptoms = [_symptom(leaf) for leaf in _leaves(error)]
    return Observation(symptoms, os.times().user - started_s)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _symptom(error: BaseException) -> str:
    """The type and the text, with an invariant's name; of an error without a text, which of our lines it came from."""
    text = str(error)
    if not text:
        frames = traceback.extract_tb(error.__traceback__)
        last = ([frame for frame in frames if frame.filename.startswith(_OURS)] or frames)[-1]
        text = f"{last.name}: {last.line}"
    named = f"[{error.name}] " if isinstance(error, AssertionError) and hasattr(error, "name") else ""
    return f"{type(error).__name__}: {named}{text}"
