"""Keepalive, flushing and shutdown of all sessions of one listener, in three tasks, so that an idle session needs only
one.

Laws: each session is visited once per keepalive interval, a slice at a time, so that many sessions do not block the
loop. A bug in one session's visit ends only that session. Without sessions the tasks do nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from linn.api import Clock, Gateway, InternalError
from linn.wire.receive_buffers import SHARED_BYTES_MAX, ReceiveBuffers

logger = logging.getLogger("linn.capnp")

SLICES = 16
"""Slices of a keepalive interval: with 10,000 sessions each slice takes less than a millisecond."""
SESSIONS_IN_A_ROW_MAX = 256
"""Sessions visited before other tasks run."""
DRAIN_POLL_S = 0.01
DRAIN_POLL_S_MAX = 0.25
"""Longest polling interval of a wait: a thousand waiting sessions poll at growing intervals, or would fill the loop."""


async def wait_while(waits: Callable[[], object], clock: Clock, wait_max_s: float) -> None:
    """Return when a condition has become false, or after `wait_max_s`.

    Cancellation: nothing happens.
    """
    pause_s = DRAIN_POLL_S
    with trio.move_on_after(wait_max_s):
        while waits():
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, DRAIN_POLL_S_MAX)


class KeptSession(Protocol):
    """The part of a session that the keepalive uses."""

    peer: str
    """The client's address."""
    slice: dict[KeptSession, None]
    """The slice of the keepalive that contains the session."""

    def watch(self) -> None:
        """Called once per keepalive interval: end a connection that has been silent for too long."""

    def flush(self) -> None:
        """Send as much as the client can take now."""

    def say_goodbye(self) -> None:
        """Tell the client that the broker is stopping."""

    def leave_if_done(self) -> None:
        """After goodbye, end if no work is in progress."""

    def end(self) -> None:
        """Drop the connection, and all its work in progress."""


class Keepalive:
    """The keepalive of one listener's sessions. Its tasks start with the first session, in the broker's nursery."""

    def __init__(self, keepalive_s: float) -> None:
        self.keepalive_s = keepalive_s
        self.free_buffers = ReceiveBuffers(SHARED_BYTES_MAX)
        self._slices: list[dict[KeptSession, None]] = [{} for _ in range(SLICES)]
        self._slice = 0
        """The last visited slice; a new session joins it, to be visited after nearly a whole interval."""
        self._count = 0
        self._works = False
        self._draining = False
        self._joined = trio.Event()
        self._unsent: list[KeptSession] = []
        self._put: trio.Event | None = None

    def join(self, session: KeptSession, gateway: Gateway) -> None:
        """Serve a session until it leaves."""
        session.slice = self._slices[self._slice]
        session.slice[session] = None
        self._count += 1
        self._joined.set()
        if not self._works:
            self._works = True
            gateway.spawn(self._flush)
            gateway.spawn(partial(self._watch, gateway))
            gateway.spawn(partial(self._drain_sessions, gateway))
        if self._draining:
            session.say_goodbye()

    def leave(self, session: KeptSession) -> None:
        """Remove a session that has ended. Idempotent, also for a session that never joined."""
        if session in session.slice:
            del session.slice[session]
            self._count -= 1

    def send_soon(self, session: KeptSession) -> None:
        """Flush the session's outbox once all runnable tasks have added their output."""
        self._unsent.append(session)
        if self._put is not None:
            self._put.set()
            self._put = None

    async def _flush(self) -> None:
        while True:
            if not self._unsent:
                self._put = trio.Event()
                await self._put.wait()
            unsent, self._unsent = self._unsent, []
            await self._visit(unsent, lambda session: session.flush())

    async def _watch(self, gateway: Gateway) -> None:
        """End sessions that have been silent for too long."""
        while True:
            await self._wait_joined()
            await gateway.env.clock.sleep(self.keepalive_s / SLICES)
            self._slice = (self._slice + 1) % SLICES
            await self._visit([*self._slices[self._slice]], lambda session: session.watch())

    async def _drain_sessions(self, gateway: Gateway) -> None:
        """When the broker stops, end idle sessions at once, and the others when they are done."""
        await gateway.connections.draining.wait()
        self._draining = True
        await self._visit(self._all_sessions(), lambda session: session.say_goodbye())
        while True:
            await self._wait_joined()
            await gateway.env.clock.sleep(DRAIN_POLL_S)
            await self._visit(self._all_sessions(), lambda session: session.leave_if_done())

    def _all_sessions(self) -> list[KeptSession]:
        return [session for joined in self._slices for session in joined]

    async def _wait_joined(self) -> None:
        if not self._count:
            if self._joined.is_set():
                self._joined = trio.Event()
            await self._joined.wait()

    async def _visit(self, sessions: Sequence[KeptSession], action: Callable[[KeptSession], None]) -> None:
        for number, session in enumerate(sessions, 1):
            try:
                action(session)
            except Exception as error:
                about = {"connection": session.peer, "code": InternalError.code}
                logger.error("%(connection)s: closed for a bug", about, exc_info=error)
                session.end()
            if number % SESSIONS_IN_A_ROW_MAX == 0:
                await trio.lowlevel.checkpoint()
