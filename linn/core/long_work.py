"""Work that takes long and that nobody loses by waiting for: the broker does it in turns, one task of all at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from linn.core.steps import TURN_S, Steps

if TYPE_CHECKING:
    from linn.core.broker import Broker

TURNS_OF_OTHERS = 3
"""Turns of the loop for each of long work: a step may take longer than a turn, and small requests need many."""
T = TypeVar("T")


async def give_turn(broker: Broker) -> None:
    """Let others go on; between two turns of theirs one goes on of all that takes long."""
    async with broker.long_turn:
        for _ in range(TURNS_OF_OTHERS):
            await trio.lowlevel.checkpoint()


async def in_turns(broker: Broker, steps: Steps[T]) -> T:
    """The result of these steps. A thousand connections that end together hold up nobody for longer than one of them.

    Cancellation: they end where they are.
    """
    monotonic, until_s = broker.env.clock.monotonic, 0.0
    while True:
        if monotonic() >= until_s:
            await give_turn(broker)
            until_s = monotonic() + TURN_S
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
