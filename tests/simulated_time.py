"""Tests that run in simulated time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from linn.testing.deterministic import run_simulation


def simulated(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that runs in simulated time: on the seed 0, unless it has one. Its parameters but `env` are pytest's."""

    def run(**given: Any) -> None:
        run_simulation(given.get("seed", 0), lambda env: scenario(env, **given))

    run.__name__, run.__doc__, run.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    kept = list(inspect.signature(scenario).parameters.values())[1:]
    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return run
