"""Waiting primitives: a deadline that may be moved forward, and a signal that wakes one of several tasks."""

from __future__ import annotations

import math
from collections import deque
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
