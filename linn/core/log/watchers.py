"""Notification of new records in a partition: all watchers are called, a few per turn of the loop.

Laws: after each `tell` every watcher registered then is called at least once. Thousands of watchers do not block the
loop: the consequences of a call, such as a delivery, are done before the next few are called.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import trio

TOLD_AT_ONCE_MAX = 64
"""Watchers called in one step after a record or sync: a delivery takes about 100 us."""


class Watchers:
    """The watchers of one partition."""

    __slots__ = ("_left", "_spawn", "_telling", "_watching")

    def __init__(self, spawn: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """`spawn` starts a task that runs while there are watchers to call."""
        self._spawn = spawn
        self._watching: OrderedDict[Callable[[], None], None] = OrderedDict()
        """Watchers in the order of the calls; the one called last is at the end."""
        self._left = 0
        """Number of calls left; too high if watchers have left meanwhile, so that some are called twice."""
        self._telling = False

    def __len__(self) -> int:
        return len(self._watching)

    def add(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever there are new records. It must be synchronous and cheap."""
        self._watching[watcher] = None

    def remove(self, watcher: Callable[[], None]) -> None:
        """Undo `add`."""
        del self._watching[watcher]

    async def wait(self) -> None:
        """Wait for new records, or return if they have just arrived. Cancellation: nothing happens."""
        told = trio.Event()
        self.add(told.set)
        try:
            await told.wait()
        finally:
            self.remove(told.set)

    def tell(self) -> None:
        """Call the watchers: there are new records."""
        self._left = len(self._watching)
        if self._left and not self._telling:
            self._tell_batch()
            if self._left:
                self._telling = True
                self._spawn(self._tell_rest)

    def _tell_batch(self) -> None:
        watching = self._watching
        self._left = min(self._left, len(watching))
        for _ in range(min(self._left, TOLD_AT_ONCE_MAX)):
            watcher = next(iter(watching))
            watching.move_to_end(watcher)
            self._left -= 1
            watcher()

    async def _tell_rest(self) -> None:
        try:
            while self._left:
                await trio.lowlevel.checkpoint()
                self._tell_batch()
        finally:
            self._telling = False
