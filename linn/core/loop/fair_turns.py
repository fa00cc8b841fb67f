"""Fair turns of connections on the loop: in order of arrival, a bounded number between two turns of all other tasks.

trio alone runs each runnable task once before it polls for new events: with 10,000 busy connections that takes seconds.
Here as many connections run in a turn of the loop as fit into `TURN_OF_ALL_S`, each for at most `TURN_S`; the others
wait in order of arrival. Two kinds of connections go first: new ones, so that a client that connects to a busy broker
is answered within a moment, and connections whose last turn was much shorter than the mean, so that a small request
does not wait for very large ones.

Laws: while few connections are busy, none waits and hardly anything is measured. Connections that go first get at most
half of the turns, so that they can't starve the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import trio

from linn.core.batch.steps import TURN_S

TURN_OF_ALL_S = 0.008
"""Target time of one round of connections: a request and its answer need two or three rounds of other connections,
about 20 ms on an overloaded broker."""
TOGETHER_MIN = 16
"""Fewest connections per turn of the loop, however long they take: fills `TURN_OF_ALL_S` if each works for `TURN_S`."""
TOGETHER_MAX = 1_024
FIRST_TOGETHER = 64
"""Connections per turn of the loop before their duration is known."""
MEAN_WEIGHT = 1 / 8
"""Weight of the last turn of the loop in the mean time that a connection's turn takes."""
NEW_S = 1.0
"""Time for which a connection counts as new: enough for hello and a command's requests."""
SHORT_PART = 1 / 4
"""A turn is short if it takes less than this part of the mean."""


class TurnSlot:
    """A connection's place in the fair turns."""

    __slots__ = ("_began_s", "_new_until_s", "_turns", "_was_short", "goes_first", "task")

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._began_s = 0.0
        """The start of this turn, if the connection had to wait for it."""
        self._was_short = False
        self._new_until_s = turns.monotonic() + NEW_S
        self.goes_first = False
        """Whether it waits in the queue that is served first."""
        self.task: trio.lowlevel.Task | None = None
        """The task that waits for its turn."""

    @property
    def waits(self) -> bool:
        """Whether the connection is busy and waits for its turn."""
        return self.task is not None

    async def next_turn(self, ready: Callable[[], Awaitable[None]] | None) -> None:
        """End this turn, and return in the next one after `ready` has returned; None: there is more to do at once.

        Cancellation: a checkpoint; the turn is given up. Raises what `ready` raises.
        """
        turns = self._turns
        if self._began_s:
            self._was_short = turns.is_short(turns.monotonic() - self._began_s)
            self._began_s = 0.0
        if ready is not None:
            await ready()
        elif turns.left:
            await trio.lowlevel.checkpoint()
        if turns.left:
            turns.take()
        else:
            await self._wait()

    async def _wait(self) -> None:
        self.task = trio.lowlevel.current_task()
        self.goes_first = self._was_short or self._turns.monotonic() < self._new_until_s
        self._turns.enter(self)

        def give_up(_: object) -> trio.lowlevel.Abort:
            self.task = None
            self._turns.leave(self)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        self._began_s = self._turns.monotonic()

    def is_over(self) -> bool:
        """Whether other connections wait and this turn has lasted long enough."""
        if not self._began_s or self._turns.left:
            return False
        return self._turns.monotonic() - self._began_s >= TURN_S


class FairTurns:
    """The fair turns of a broker's connections."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._mean_s = TURN_OF_ALL_S / FIRST_TOGETHER
        """Running mean of the duration of a connection's turn."""
        self._together = self.left = FIRST_TOGETHER
        """Connections that may run in a turn of the loop, and the number left in this turn."""
        self._first: OrderedDict[TurnSlot, None] = OrderedDict()
        self._others: OrderedDict[TurnSlot, None] = OrderedDict()
        """Waiting connections in order of arrival, with fast removal."""
        self._pacer: trio.lowlevel.Task | None = None
        """The task of `run`, while it sleeps."""

    @property
    def waiting(self) -> int:
        """Busy connections that wait for their turn."""
        return len(self._first) + len(self._others)

    def take(self) -> None:
        """Let a connection run that has not waited. At most a quarter of them run so before the pacer checks."""
        self.left -= 1
        if self._pacer is not None and self._is_busy(self._together - self.left):
            self._wake()

    def _is_busy(self, went_on: int) -> bool:
        return 4 * went_on > self._together

    def is_short(self, turn_s: float) -> bool:
        """Whether a connection's turn took much less time than the mean."""
        return turn_s < self._mean_s * SHORT_PART

    def enter(self, slot: TurnSlot) -> None:
        """Add a connection to its queue."""
        queue = self._first if slot.goes_first else self._others
        queue[slot] = None
        self._wake()

    def leave(self, slot: TurnSlot) -> None:
        """Remove a connection that stops waiting."""
        queue = self._first if slot.goes_first else self._others
        del queue[slot]

    def _wake(self) -> None:
        pacer, self._pacer = self._pacer, None
        if pacer is not None:
            trio.lowlevel.reschedule(pacer)

    async def run(self) -> None:
        """Run waiting connections, turn after turn; sleep while few are busy."""
        while True:
            began_s = self.monotonic()
            self._release_waiting()
            await trio.lowlevel.checkpoint()
            went_on = self._together - self.left
            if went_on:
                self._learn((self.monotonic() - began_s) / went_on)
            if not self.waiting and not self._is_busy(went_on):
                self.left = self._together
                await self._sleep()

    def _release_waiting(self) -> None:
        count = min(self.waiting, self._together)
        first = min(len(self._first), max(count // 2, count - len(self._others)))
        for queue, turns in ((self._first, first), (self._others, count - first)):
            for _ in range(turns):
                slot, _ = queue.popitem(last=False)
                task, slot.task = slot.task, None
                assert task is not None
                trio.lowlevel.reschedule(task)
        self.left = self._together - count

    def _learn(self, turn_s: float) -> None:
        self._mean_s += (turn_s - self._mean_s) * MEAN_WEIGHT
        self._together = max(TOGETHER_MIN, min(int(TURN_OF_ALL_S / max(self._mean_s, 1e-9)), TOGETHER_MAX))

    async def _sleep(self) -> None:
        self._pacer = trio.lowlevel.current_task()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._pacer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
