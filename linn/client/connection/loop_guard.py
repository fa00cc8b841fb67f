"""Which event loop a client belongs to. Nothing of a client may be touched in another one, or in another thread."""

from __future__ import annotations

from _thread import get_ident
from asyncio import _get_running_loop

from linn.core.errors.tree import ClientUnreachable


class LoopGuard:
    """The event loop in which it is made.

    A thread runs one of trio's at a time, and of asyncio's the one that this thread says it runs.
    """

    __slots__ = ("_asyncio_loop", "thread_id")

    def __init__(self) -> None:
        self.thread_id = get_ident()
        """For calls that are made for each message: they look at this alone, and call `check` where they touch more."""
        self._asyncio_loop = _get_running_loop()

    def check(self) -> None:
        """Raises ClientUnreachable in any other. Costs less than 0.1 us."""
        if get_ident() != self.thread_id or _get_running_loop() is not self._asyncio_loop:
            raise ClientUnreachable(
                "this is not the event loop, or not the thread, that the client was made in: "
                "make one here, or use linn.sync, whose clients any thread may use"
            )
