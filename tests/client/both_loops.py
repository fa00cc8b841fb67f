"""Runs a test under trio and under asyncio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test as two sync ones; fixtures are given by name."""

    @pytest.mark.parametrize("loop", ["trio", "asyncio"])
    def run(loop: str, **fixtures: Any) -> None:
        anyio.run(functools.partial(test, **fixtures), backend=loop)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    parameters = [inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)]
    parameters += [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(test).parameters.values()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
