"""Work split into steps; whoever runs it may let other tasks run between them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Each `next` is a step; the result comes with the last one."""
STEP_RECORDS = 1_024
"""Records of one step where each is looked at or moved: 0.5 to 1 ms."""
TURN_S = 0.0005
"""Longest time that one task works before it lets others run, a pause that costs a tenth of it. A round of requests
takes others up to ten turns: with 2 ms, a client that wants 50 a second gets 30 beside a storm of requests.
"""


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without a pause, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def no_steps() -> Steps[None]:
    """Nothing to do."""
    yield from ()
