"""Fair scheduling of busy connections: however many there are, a turn of the loop has an end.

By itself the loop runs each runnable task once before it looks for new events: with 10,000 busy connections that is
seconds, in which nothing new is seen. Here as many connections run between two turns of all other tasks as fit into
`TURN_OF_ALL_S`, and the others wait in the order of start-time fair queueing (Goyal, Vin and Cheng, 1996): a connection
that has used less recently comes first, so that a few small requests among those of thousands of busy clients are soon
carried out.

Laws: while few connections are busy, none waits and hardly anything is measured. A waiting connection runs within a
bounded number of turns: the cost that one turn of a connection counts for is limited. The number of connections that
run in a turn of the loop is decided by wall time; the use of a connection by processor time, or one that is preempted
by another process would be served less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush

import trio

from linn.core.batch.steps import TURN_S

TURN_OF_ALL_S = 0.008
"""Target time of one round of connections: a request and its answer take others two or three turns, some 20 ms on an
overloaded broker.
"""
AT_ONCE_MIN = 16
"""Fewest connections per round, however long they take: a round's time, if each works as long as it may."""
AT_ONCE_MAX = 1_024
FIRST_AT_ONCE = 64
"""Connections per round before their duration is known."""
MEASURED_EACH = 16
"""The sampling rate of turns that need no waiting: one in this many is measured."""
PART_OF_MEAN = 1 / 64
"""Weight of each turn in the running mean of durations."""
DEARER_MAX = 4
CHEAPER_MAX = 2
"""Factors around the mean within which a turn counts as the mean: connections with similar requests are served about
equally often, though a fetch takes twice as long as a publish.
"""
CREDIT_S_MAX = 8 * TURN_S
"""Limit of the credit that a connection has over the waiting ones for having used less than its share: some ten or
twenty small requests in a row.
"""
ROUNDS_MAX = 3
"""Starvation bound: a connection overtaken by three times the number of waiting ones runs next, whatever their credit.
Thousands may become busy at once, and long turns must not be put off for ever.
"""
FIRST_CREDIT_S = 2 * TURN_S
"""Credit of a new connection; little, so that clients that reconnect again and again take nothing from others."""
COUNTED_MAX = 8
"""Limit of the cost that one turn is charged, in means. The garbage collector may have run in it: of 1,000 clients with
equal requests a few would get less than half as many answers as the others.
"""
COUNTED_S_MAX = 4 * TURN_S
"""Limit of the cost that one turn of a connection is charged, in seconds: a step that could not be shorter is the
broker's fault.
"""


class TurnSlot:
    """One connection's state in the fair queue."""

    __slots__ = ("_began_s", "_counts", "_turns", "_used_s", "_worked_s", "came", "number", "task")

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self.number = turns.next_number()
        """Tie-breaker between equal start times: the older connection runs first."""
        self._used_s = turns.passed_s - FIRST_CREDIT_S
        """Virtual finish time of its last turn, on the scale of `FairTurns.passed_s`."""
        self._began_s: float | None = None
        """Start of the current turn, if it is measured."""
        self._worked_s = 0.0
        """Processor time of the loop's thread at that moment."""
        self._counts = False
        """Whether the measurement is counted."""
        self.came = 0
        """Position in the order of arrival."""
        self.task: trio.lowlevel.Task | None = None
        """The waiting task."""

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn."""
        return self.task is not None

    async def next_turn(self, ready: Callable[[], Awaitable[None]] | None) -> None:
        """End this turn, and return in the next, once `ready` has returned. None: there is more to do at once.

        Cancellation: a checkpoint; the turn is given up. Raises whatever `ready` raises.
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
        """Whether this turn has been long enough, given that others wait."""
        if self._began_s is None or self._turns.left:
            return False
        return self._turns.monotonic() - self._began_s >= TURN_S

    def end(self) -> None:
        """End the turn: the task waits for something else next. Idempotent."""
        if self._began_s is not None:
            turns = self._turns
            counted_s = turns.learn(turns.monotonic() - self._began_s, turns.processor_s() - self._worked_s)
            self._began_s = None
            if self._counts:
                self._used_s += counted_s


class FairTurns:
    """The scheduler for all connections of a broker."""

    def __init__(self, monotonic: Callable[[], float], processor_s: Callable[[], float]) -> None:
        """`processor_s` returns the processor time of the loop's thread."""
        self.monotonic = monotonic
        self.processor_s = processor_s
        self.passed_s = 0.0
        """Virtual time: the amount that each waiting connection could have used so far."""
        self._mean_s = self._mean_work_s = TURN_OF_ALL_S / FIRST_AT_ONCE
        """Running means of recent turns: duration, and processor time."""
        self._at_once = self.left = FIRST_AT_ONCE
        """Connections that may run in a turn, and how many of these are left."""
        self._by_start: list[tuple[float, int, int, TurnSlot]] = []
        """A heap by start time; the older connection first if equal. Some entries are stale: they have run since, or
        gave up.
        """
        self._in_order: deque[tuple[int, TurnSlot]] = deque()
        """The same entries in order of arrival."""
        self._came = self._numbers = 0
        self.waiting = 0
        """Busy connections that wait."""
        self._pacer: trio.lowlevel.Task | None = None
        """The task of `run`, while it sleeps."""

    def next_number(self) -> int:
        """The number of a new connection."""
        self._numbers += 1
        return self._numbers

    def take(self) -> bool:
        """Take one of this turn's places; returns whether to measure. A quarter of the places need no pacer."""
        self.left -= 1
        if self.left < self._at_once - self._at_once // 4:
            self._want_pacer()
        return not self.left % MEASURED_EACH

    def learn(self, took_s: float, work_s: float) -> float:
        """Record the duration and processor time of a turn; returns the cost that it counts for."""
        took_s, work_s, mean_s = min(took_s, COUNTED_S_MAX), min(work_s, COUNTED_S_MAX), self._mean_work_s
        self._mean_s = max(self._mean_s + (took_s - self._mean_s) * PART_OF_MEAN, TURN_OF_ALL_S / AT_ONCE_MAX)
        self._mean_work_s = mean_s + (work_s - mean_s) * PART_OF_MEAN
        self._at_once = max(AT_ONCE_MIN, int(TURN_OF_ALL_S / self._mean_s))
        self.left = min(self.left, self._at_once)
        if mean_s / CHEAPER_MAX < work_s < mean_s * DEARER_MAX:
            return mean_s
        return min(work_s, mean_s * COUNTED_MAX)

    def enter(self, starts_s: float, share: TurnSlot) -> None:
        """Add a connection to the queue."""
        self._came += 1
        self.waiting += 1
        share.came = self._came
        self._in_order.append((self._came, share))
        heappush(self._by_start, (starts_s, share.number, self._came, share))
        self._want_pacer()

    def _want_pacer(self) -> None:
        """Wake the pacer, to run waiting connections in the next turn."""
        pacer, self._pacer = self._pacer, None
        if pacer is not None:
            trio.lowlevel.reschedule(pacer)

    async def run(self) -> None:
        """Run waiting connections, turn after turn; sleep while there are none."""
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
        """Run waiting connections up to the limit of a turn; connections that arrive in the same turn get the rest of
        it.
        """
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
        """Drop stale entries when they are the majority: an overtaken connection need not be the oldest entry."""
        if len(self._by_start) > 2 * self.waiting + AT_ONCE_MAX:
            self._by_start = [entry for entry in self._by_start if _waits(entry[2], entry[3])]
            heapify(self._by_start)
        if len(self._in_order) > 2 * ROUNDS_MAX * self.waiting + AT_ONCE_MAX:
            self._in_order = deque(entry for entry in self._in_order if _waits(*entry))

    def _longest_passed(self) -> tuple[int, TurnSlot] | None:
        in_order = self._in_order
        if in_order and self._came - in_order[0][0] > ROUNDS_MAX * self.waiting:
            return in_order.popleft()
        return None

    def _first(self) -> tuple[int, TurnSlot]:
        starts_s, _, came, share = heappop(self._by_start)
        if _waits(came, share):
            self.passed_s = max(self.passed_s, starts_s)
        return came, share


def _waits(came: int, share: TurnSlot) -> bool:
    return share.came == came and share.task is not None
