"""The turns of the loop, shared fairly: however many connections have something to do, a turn has an end.

By itself the loop gives each task that may run its turn before it looks for what else has come: with 10,000 busy
connections that is seconds, in which nothing new is seen. Here as many go on between two turns of all others as are
done in `TURN_OF_ALL_S`, and the others wait in the order of start-time fair queueing (Goyal, Vin and Cheng, 1996):
who has used less of late comes first, so that a few small requests among those of thousands of busy clients are soon
carried out.

Laws: while few have something to do, nobody waits and hardly anything is measured. Who waits is let on within a bounded
number of turns: what one turn of a connection counts for has a limit. How many go on in a turn of the loop goes by
time; what a connection has used, by processor time, or who is interrupted by another process would be served less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush

import trio

from linn.core.batch.steps import TURN_S

TURN_OF_ALL_S = 0.008
"""A request and its answer take others two or three turns: some 20 ms on a broker that has too much to do."""
AT_ONCE_MIN = 16
"""However long they take: that is a turn's time, if each works as long as it may."""
AT_ONCE_MAX = 1_024
FIRST_AT_ONCE = 64
"""Before it is known how long they take."""
MEASURED_EACH = 16
"""Of the turns for which nobody had to wait one in so many is measured."""
PART_OF_MEAN = 1 / 64
"""Of each turn, in the mean of how long they take."""
DEARER_MAX = 4
CHEAPER_MAX = 2
"""Turns that take more than the mean, or less, by no more than these factors count as the mean: those who ask for about
as much are served about as often as one another, though a fetch takes twice what a publish does."""
CREDIT_S_MAX = 8 * TURN_S
"""What a connection may have ahead of all others that wait, because it has used less than they could: with small
requests some ten or twenty, one after the other."""
ROUNDS_MAX = 3
"""Whom three times as many have passed as wait goes on, whatever those have ahead: thousands may begin to work at once,
and long turns are not put off for ever."""
FIRST_CREDIT_S = 2 * TURN_S
"""Of one that is new: what others get is not less for those who come again and again."""
COUNTED_MAX = 8
"""Of the mean. The collector may have worked meanwhile: of 1,000 clients that ask alike a few would get less than half
as many answers as the others."""
COUNTED_S_MAX = 4 * TURN_S
"""Most that a connection's turn counts for: the step that it could not make shorter is the broker's fault."""


class Share:
    """One connection's part in the turns of all."""

    __slots__ = ("_began_s", "_counts", "_turns", "_used_s", "_worked_s", "came", "number", "task")

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self.number = turns.next_number()
        """Of two that may begin at the same time, the older one does."""
        self._used_s = turns.passed_s - FIRST_CREDIT_S
        """Where the turn ended that it had last, in the time of `FairTurns.passed_s`."""
        self._began_s: float | None = None
        """When it went on, where that is measured."""
        self._worked_s = 0.0
        """What the broker had worked by then."""
        self._counts = False
        """Whether what is measured is counted."""
        self.came = 0
        """Where it is in the order in which those that wait came."""
        self.task: trio.lowlevel.Task | None = None
        """The one that waits."""

    @property
    def waits(self) -> bool:
        """Whether others are let on before it."""
        return self.task is not None

    async def next_turn(self, ready: Callable[[], Awaitable[None]] | None) -> None:
        """End this turn, and return in the next, once `ready` has returned. None: there is more to do at once.

        Cancellation: a checkpoint; the turn is given up. Raises what `ready` raises.
        """
        turns = self._turns
        self.end()
        if ready is not None:
            await ready()
        elif turns.left:
            await trio.lowlevel.checkpoint()
        if not turns.left:
            await self._begin()
        elif turns.take():
            self._measure(counts=False)

    async def _begin(self) -> None:
        turns = self._turns
        starts_s = max(self._used_s, turns.passed_s - CREDIT_S_MAX)
        self.task = trio.lowlevel.current_task()
        turns.enter(starts_s, self)

        def give_up(_: object) -> trio.lowlevel.Abort:
            self.task = None
            turns.waiting -= 1
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        self._used_s = starts_s
        self._measure(counts=True)

    def _measure(self, *, counts: bool) -> None:
        turns = self._turns
        self._began_s, self._worked_s, self._counts = turns.monotonic(), turns.processor_s(), counts

    def is_over(self) -> bool:
        """Whether others wait, and this turn has been long enough."""
        if self._began_s is None or self._turns.left:
            return False
        return self._turns.monotonic() - self._began_s >= TURN_S

    def end(self) -> None:
        """The turn is over: what follows waits for something. Idempotent."""
        if self._began_s is not None:
            turns = self._turns
            counted_s = turns.learn(turns.monotonic() - self._began_s, turns.processor_s() - self._worked_s)
            self._began_s = None
            if self._counts:
                self._used_s += counted_s


class FairTurns:
    """For all connections of a broker."""

    def __init__(self, monotonic: Callable[[], float], processor_s: Callable[[], float]) -> None:
        """`processor_s`: how long the loop's thread has worked so far."""
        self.monotonic = monotonic
        self.processor_s = processor_s
        self.passed_s = 0.0
        """Virtual time: what each of those that wait could have used so far."""
        self._mean_s = self._mean_work_s = TURN_OF_ALL_S / FIRST_AT_ONCE
        """Of the turns of late: how long they took, and how much of that was work."""
        self._at_once = self.left = FIRST_AT_ONCE
        """How many may go on in a turn; how many of them have not yet."""
        self._by_start: list[tuple[float, int, int, Share]] = []
        """A heap: who begins first; of equals the oldest connection. Some have been let on since, or gave up."""
        self._in_order: deque[tuple[int, Share]] = deque()
        """The same in the order in which they came."""
        self._came = self._numbers = 0
        self.waiting = 0
        """Connections that have something to do and wait."""
        self._pacer: trio.lowlevel.Task | None = None
        """The task of `run`, while nobody wants it."""

    def next_number(self) -> int:
        """For a new connection."""
        self._numbers += 1
        return self._numbers

    def take(self) -> bool:
        """One of those that may go on in this turn does; whether to measure it. A quarter can do without the pacer."""
        self.left -= 1
        if self.left < self._at_once - self._at_once // 4:
            self._want_pacer()
        return not self.left % MEASURED_EACH

    def learn(self, took_s: float, work_s: float) -> float:
        """How long a turn took, and how much of that was work; what it counts for."""
        took_s, work_s, mean_s = min(took_s, COUNTED_S_MAX), min(work_s, COUNTED_S_MAX), self._mean_work_s
        self._mean_s = max(self._mean_s + (took_s - self._mean_s) * PART_OF_MEAN, TURN_OF_ALL_S / AT_ONCE_MAX)
        self._mean_work_s = mean_s + (work_s - mean_s) * PART_OF_MEAN
        self._at_once = max(AT_ONCE_MIN, int(TURN_OF_ALL_S / self._mean_s))
        self.left = min(self.left, self._at_once)
        if mean_s / CHEAPER_MAX < work_s < mean_s * DEARER_MAX:
            return mean_s
        return min(work_s, mean_s * COUNTED_MAX)

    def enter(self, starts_s: float, share: Share) -> None:
        """Have this share wait."""
        self._came += 1
        self.waiting += 1
        share.came = self._came
        self._in_order.append((self._came, share))
        heappush(self._by_start, (starts_s, share.number, self._came, share))
        self._want_pacer()

    def _want_pacer(self) -> None:
        """In the next turn, let on who waits, and whoever comes then."""
        pacer, self._pacer = self._pacer, None
        if pacer is not None:
            trio.lowlevel.reschedule(pacer)

    async def run(self) -> None:
        """Let on who waits, turn after turn; sleeps while nobody does."""
        while True:
            while self.waiting:
                self._let_on()
                await trio.lowlevel.checkpoint()
            self.left = self._at_once
            await self._until_wanted()

    async def _until_wanted(self) -> None:
        self._pacer = trio.lowlevel.current_task()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._pacer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    def _let_on(self) -> None:
        """Of those that wait, as many as may go on; of who comes in the same turn, as many as are left."""
        count = 0
        while self.waiting and count < self._at_once:
            came, share = self._longest_passed() or self._first()
            if _waits(came, share):
                task, share.task = share.task, None
                assert task is not None
                trio.lowlevel.reschedule(task)
                self.waiting -= 1
                count += 1
        self._forget()
        self.left = self._at_once - count

    def _forget(self) -> None:
        """Those that do not wait any more, where they are most: whom others have passed was not the first of them."""
        if len(self._by_start) > 2 * self.waiting + AT_ONCE_MAX:
            self._by_start = [entry for entry in self._by_start if _waits(entry[2], entry[3])]
            heapify(self._by_start)
        if len(self._in_order) > 2 * ROUNDS_MAX * self.waiting + AT_ONCE_MAX:
            self._in_order = deque(entry for entry in self._in_order if _waits(*entry))

    def _longest_passed(self) -> tuple[int, Share] | None:
        in_order = self._in_order
        if in_order and self._came - in_order[0][0] > ROUNDS_MAX * self.waiting:
            return in_order.popleft()
        return None

    def _first(self) -> tuple[int, Share]:
        starts_s, _, came, share = heappop(self._by_start)
        if _waits(came, share):
            self.passed_s = max(self.passed_s, starts_s)
        return came, share


def _waits(came: int, share: Share) -> bool:
    return share.came == came and share.task is not None
