"""Runs a test under trio and under asyncio, and as a test of the blocking client."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from blocking_facade import BOTH, EXAMPLES, replaced
from scripted_peer import running_peer

import linn

LOOPS = ("trio", "asyncio")
TESTS = (
    (r"^@on_both\w+\n", ""),
    (r"\bawait anyio\.sleep\b", "sleep"),
    (r"\bawait (\S+\.(?:ack|nack|reject|extend)\([^()]*\))", r"\1.wait()"),
)
"""Words that differ in tests alone."""


@functools.cache
def blocking_names(path: Path) -> dict[str, Any]:
    """The names of a module of tests without `async` and `await`, for the blocking client."""
    code = replaced(path.read_text(encoding="utf-8"), TESTS, EXAMPLES, BOTH)
    names: dict[str, Any] = {"__name__": f"{path.stem}_blocking", "sleep": threading.Event().wait}
    exec(compile(code, f"{path} (blocking)", "exec"), names)
    return names


def _run(test: Callable[..., Awaitable[None]], kinds: tuple[str, ...]) -> Callable[..., None]:
    """An async test as one for each kind.

    Parameters that are clients or a peer by their type are opened for the test: clients of the peer if there is one,
    and of the fixture `broker` otherwise. All others are fixtures.
    """
    parameters = inspect.signature(test).parameters.values()
    peers = [one.name for one in parameters if one.annotation == "Peer"]
    clients = [one.name for one in parameters if one.annotation in ("Client", "linn.client.Client")]
    wanted = [one.name for one in parameters if one.name not in (*peers, *clients)]

    async def opened(**fixtures: Any) -> None:
        async with AsyncExitStack() as stack:
            given = {name: fixtures[name] for name in wanted}
            given |= {name: await stack.enter_async_context(running_peer()) for name in peers}
            url = given[peers[0]].url if peers else fixtures.get("broker", "")
            for name in clients:
                given[name] = await stack.enter_async_context(linn.connect(url))
            await test(**given)

    def opened_blocking(**fixtures: Any) -> None:
        with ExitStack() as stack:
            given = {name: fixtures[name] for name in wanted}
            for name in clients:
                given[name] = stack.enter_context(linn.sync.connect(fixtures["broker"]))
            blocking_names(Path(inspect.getfile(test)))[test.__name__](**given)

    @pytest.mark.parametrize("loop", kinds)
    def run(loop: str, **fixtures: Any) -> None:
        if loop == "blocking":
            opened_blocking(**fixtures)
        else:
            anyio.run(functools.partial(opened, **fixtures), backend=loop)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    names = dict.fromkeys(["loop", *(["broker"] if clients and not peers else []), *wanted])
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return run


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test as two sync ones."""
    return _run(test, LOOPS)


def on_both_clients(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test as two sync ones, and the same lines without `async` and `await` as one of the blocking client."""
    return _run(test, (*LOOPS, "blocking"))
