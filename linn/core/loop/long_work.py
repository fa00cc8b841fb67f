"""Work that takes long and that nobody loses by waiting for: the broker does it in turns, one task of all at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from linn.core.batch.steps import TURN_S, Steps

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker

TURNS_OF_OTHERS = 3
"""Turns of the loop for each of long work: small requests need many."""
TURNS_OF_OTHERS_MAX = 30
"""After a step that could not be made as short as a turn."""
LONG_STEP_S = 4 * TURN_S
REST = 0.5
"""Of a step that took so long: who waited for its end asks for the next thing only when its answer has come, and would
wait for the end of another step each time."""
REST_S_MAX = 0.02
"""Enough for a few requests, one after the other."""
T = TypeVar("T")


async def let_others_on(monotonic: Callable[[], float], worked_s: float = TURN_S) -> None:
    """Give others some turns for each of one's own, or the time of these where each of theirs is long.

    Cancellation: a checkpoint.
    """
    turns = int(worked_s / TURN_S) * TURNS_OF_OTHERS
    until_s = monotonic() + TURNS_OF_OTHERS * max(worked_s, TURN_S)
    for _ in range(min(max(turns, TURNS_OF_OTHERS), TURNS_OF_OTHERS_MAX)):
        await trio.lowlevel.checkpoint()
        if monotonic() >= until_s:
            return


class LongWork:
    """What is done of one task's long work: `begin` a step, and `pause` when a turn is over."""

    def __init__(self, broker: Broker, *, at_once: bool = False) -> None:
        """`at_once`: the first turn is now, because those who begin do so a few at a time."""
        self._broker = broker
        self._monotonic = broker.env.clock.monotonic
        self._began_s = self._until_s = self._monotonic()
        if at_once:
            self._until_s += TURN_S

    async def give_turn(self) -> None:
        """Where this turn is over, let others go on; between two turns of theirs one goes on of all that takes long.

        They have several turns for each, or the time of these: where each turn is long, that is less. After a step of
        several turns there is a rest. Once the broker stops nobody has to be let on.

        Cancellation: a checkpoint, if there is one.
        """
        now_s = self._monotonic()
        if now_s < self._until_s:
            return
        if self._broker.stopping:
            await trio.lowlevel.checkpoint()
        else:
            async with self._broker.long_turn:
                await let_others_on(self._monotonic, now_s - self._began_s)
                await self._rest(now_s)
        self._began_s = self._monotonic()
        self._until_s = self._began_s + TURN_S

    async def _rest(self, ended_s: float) -> None:
        worked_s = ended_s - self._began_s
        rest_s = min(REST * worked_s, REST_S_MAX) - (self._monotonic() - ended_s)
        if worked_s >= LONG_STEP_S and rest_s > 0:
            await self._broker.env.clock.sleep(rest_s)


async def in_turns(broker: Broker, steps: Steps[T], *, at_once: bool = False) -> T:
    """The result of these steps. A thousand connections that end together hold up nobody for longer than one of them.

    `at_once`: see `LongWork`.

    Cancellation: they end where they are.
    """
    work = LongWork(broker, at_once=at_once)
    while True:
        await work.give_turn()
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
