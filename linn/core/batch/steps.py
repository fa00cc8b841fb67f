"""Work split into steps, between which its caller may let other tasks run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Each `next` is a step; the result comes with the last one."""
STEP_RECORDS = 1_024
"""Records examined or moved in one step: 0.5 to 1 ms."""
TURN_S = 0.0005
"""Longest time that a task works before it lets other tasks run; the pause costs a tenth of it. A round of requests
takes up to ten turns: with 2 ms, a client that sends 50 requests a second gets 30 answers beside a storm of
requests."""


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without a pause, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def no_steps() -> Steps[None]:
    """Steps that do nothing."""
    yield from ()
