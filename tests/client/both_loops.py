"""Runs a test under trio and under asyncio, and as a test of the blocking client."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from blocking_facade import BOTH, EXAMPLES, replaced

LOOPS = ("trio", "asyncio")
TESTS = (
    (r"^@on_both\w+\n", ""),
    (r"\bawait (\S+\.(?:ack|nack|reject|extend)\([^()]*\))", r"\1.wait()"),
)
"""Words that differ in tests alone."""


@functools.cache
def blocking_names(path: Path) -> dict[str, Any]:
    """The names of a module of tests without `async` and `await`, for the blocking client."""
    code = replaced(path.read_text(encoding="utf-8"), TESTS, EXAMPLES, BOTH)
    names: dict[str, Any] = {"__name__": f"{path.stem}_blocking"}
    exec(compile(code, f"{path} (blocking)", "exec"), names)
    return names


def _run(test: Callable[..., Awaitable[None]], kinds: tuple[str, ...]) -> Callable[..., None]:
    """An async test as one for each kind; fixtures are given by name."""

    @pytest.mark.parametrize("loop", kinds)
    def run(loop: str, **fixtures: Any) -> None:
        if loop == "blocking":
            blocking_names(Path(inspect.getfile(test)))[test.__name__](**fixtures)
        else:
            anyio.run(functools.partial(test, **fixtures), backend=loop)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    parameters = [inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)]
    parameters += [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(test).parameters.values()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test as two sync ones."""
    return _run(test, LOOPS)


def on_both_clients(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test as two sync ones, and the same lines without `async` and `await` as one of the blocking client."""
    return _run(test, (*LOOPS, "blocking"))
