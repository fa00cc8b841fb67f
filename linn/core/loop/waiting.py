"""Waiting primitives: a deadline that may be moved forward, and signals that wake one of several tasks."""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

import trio


class WaitDeadline:
    """A deadline for waiting: a time, or an earlier call of `end`."""

    def __init__(self, wait_s: float = math.inf) -> None:
        self._until = trio.current_time() + wait_s
        self._scope: trio.CancelScope | None = None

    def end(self) -> None:
        """End the wait now. Idempotent."""
        self._until = -math.inf
        if self._scope is not None:
            self._scope.cancel()

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return trio.current_time() >= self._until

    @property
    def left_s(self) -> float:
        """The time until it passes, at least 0."""
        return max(0.0, self._until - trio.current_time())

    async def wait(self, something: Callable[[], Awaitable[None]]) -> bool:
        """Wait for an event; False if the deadline came first."""
        with trio.CancelScope(deadline=self._until) as self._scope:
            await something()
            return True
        return False


async def first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    """Wait until one of these waits is over; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[None]]) -> None:
            await one()
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)


class ReadySignal:
    """Wakes tasks that wait for work in order of arrival, one at a time, so that each finds work.

    Law: a woken task calls `notify` again if there is more work, even if it took none.
    """

    def __init__(self) -> None:
        self._waiting: deque[trio.Event] = deque()

    def notify(self) -> None:
        """Wake one task: there may be work for it."""
        if self._waiting:
            self._waiting.popleft().set()

    def notify_all(self) -> None:
        """Wake all tasks, because the change concerns all of them."""
        while self._waiting:
            self._waiting.popleft().set()

    async def wait(self) -> None:
        """Wait to be woken. Cancellation passes the wake-up on, even one that has just arrived."""
        event = trio.Event()
        self._waiting.append(event)
        try:
            await event.wait()
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            if event.is_set():
                self.notify()
            else:
                self._waiting.remove(event)
            raise


class RankedSignal:
    """Wakes tasks that wait for work one at a time: the highest rank first, by arrival within a rank.

    Law: as for `ReadySignal`. A task that finds work asks `gives_way` first, also if it has not waited. A task that has
    claimed work looks for it soon; `unclaim` is followed by `notify` if there is any.
    """

    def __init__(self) -> None:
        self._ranks: list[int] = []
        """The ranks of tasks in `wait` and of claims, lowest first."""
        self._by_rank: dict[int, _Rank] = {}

    def notify(self) -> None:
        """Wake one task: there may be work for it."""
        for rank in reversed(self._ranks):
            if self._by_rank[rank].wake():
                return

    def notify_all(self) -> None:
        """Wake all tasks, because the change concerns all of them."""
        for rank in self._by_rank.values():
            while rank.wake():
                pass

    def gives_way(self, rank: int) -> bool:
        """Whether the work is for a higher rank, by a claim or a waiting task; one is woken unless one was before."""
        if not self._ranks or self._ranks[-1] <= rank:
            return False
        first = self._by_rank[self._ranks[-1]]
        if not first.woken:
            first.wake()
        return True

    def claim(self, rank: int) -> None:
        """Claim all work before lower ranks, until `unclaim`."""
        self._enter(rank).claims += 1

    def unclaim(self, rank: int) -> bool:
        """End a claim; returns whether tasks of a lower rank are there, which gave way to it."""
        self._by_rank[rank].claims -= 1
        self._leave(rank)
        return bool(self._ranks) and self._ranks[0] < rank

    async def wait(self, rank: int, event: trio.Event) -> None:
        """Wait until a new event is set, by `notify` or by another caller. Cancellation passes the wake-up on."""
        present = self._enter(rank)
        present.waiting[event] = None
        try:
            await event.wait()
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._end_wait(rank, event)
            if event.is_set():
                self.notify()
            raise
        self._end_wait(rank, event)

    def _enter(self, rank: int) -> _Rank:
        present = self._by_rank.get(rank)
        if present is None:
            present = self._by_rank[rank] = _Rank()
            insort(self._ranks, rank)
        return present

    def _end_wait(self, rank: int, event: trio.Event) -> None:
        present = self._by_rank[rank]
        if present.waiting.pop(event, self) is self:
            present.woken -= 1
        self._leave(rank)

    def _leave(self, rank: int) -> None:
        present = self._by_rank[rank]
        if not (present.claims or present.woken or present.waiting):
            del self._by_rank[rank]
            self._ranks.remove(rank)


class _Rank:
    """The tasks of one rank that wait, and the claims."""

    __slots__ = ("claims", "waiting", "woken")

    def __init__(self) -> None:
        self.waiting: OrderedDict[trio.Event, None] = OrderedDict()
        """The events of tasks that `notify` has not woken, by arrival."""
        self.woken = 0
        """The number of tasks that it has woken, and that have not run yet."""
        self.claims = 0

    def wake(self) -> bool:
        """Wake the first task; False: there is none."""
        if not self.waiting:
            return False
        self.waiting.popitem(last=False)[0].set()
        self.woken += 1
        return True
