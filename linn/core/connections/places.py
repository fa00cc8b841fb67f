"""Places: how many connections there may be, from one machine, and of clients that are not known yet.

A connection is known once its client has logged in. Until then it waits for its client, except while the broker
computes something for it; so does a connection that only monitors. Waiting costs a client nothing,
and so it protects no place: when none is left, a new connection gets the place of the oldest waiting one of the machine
that has most of them. A machine that takes all places thus loses them to others, and its later connections get the
places of its earlier ones.

A connection for which the broker works keeps its place. When ten thousand clients come back at once, TLS handshakes in
progress end well, and other clients are refused and try again; if they ended each other, none would get in.
"""

from __future__ import annotations

from collections import Counter

import trio

from linn.core.env.env import AcceptedStream
from linn.core.errors.texts import counted
from linn.core.errors.tree import BrokerFull
from linn.core.security.machine import machine_of


class Places:
    """Places that some listeners share."""

    def __init__(
        self,
        connections_max: int,
        machine_max: int | None,
        unknown_max: int,
        limited_by: str = "connections_max allows",
    ) -> None:
        """
        Args:
            machine_max: limit of the connections from one address; None: there is none. It does not hold for this
                machine: its connections may come from a proxy, and its programs can do more harm than that.
            unknown_max: limit of the connections that are not known.
            limited_by: what says how many connections there may be, as the end of a message.
        """
        self._connections_max = connections_max
        self._machine_max = machine_max
        self._unknown_max = unknown_max
        self._limited_by = limited_by
        self._machines: dict[AcceptedStream, str] = {}
        self._counts: Counter[str] = Counter()
        self._unknown: set[AcceptedStream] = set()
        self._waiting: dict[str, dict[AcceptedStream, None]] = {}
        """Connections that wait for their clients, by machine, oldest first."""
        self._gone = trio.Event()

    @property
    def count(self) -> int:
        """The number of connections."""
        return len(self._machines)

    @property
    def unknown_count(self) -> int:
        """The number of connections that are not known."""
        return len(self._unknown)

    def take(self, stream: AcceptedStream) -> AcceptedStream | None:
        """Give a new connection a place; it waits. Returns the connection that has lost it and must end, if any.

        Raises BrokerFull.
        """
        machine, loser = machine_of(stream.peer), None
        if machine and self._machine_max is not None and self._counts[machine] >= self._machine_max:
            there = counted(self._counts[machine], "connection")
            raise BrokerFull(f"{machine} has {there}, as many as address_connections_max allows")
        if self.count >= self._connections_max or self.unknown_count >= self._unknown_max:
            if not self._waiting:
                raise self.full()
            most = max(self._waiting.values(), key=len)
            loser = next(iter(most))
            self.leave(loser)
        self._machines[stream] = machine
        self._counts[machine] += 1
        self._unknown.add(stream)
        self.begin_waiting(stream)
        return loser

    def full(self) -> BrokerFull:
        """The error about the limit that leaves no place for a new connection."""
        if self.count >= self._connections_max:
            return BrokerFull(f"the broker has {counted(self.count, 'connection')}, as many as {self._limited_by}")
        there = counted(self.unknown_count, "connection")
        return BrokerFull(f"{there} have not logged in yet, as many as handshakes_max allows: try again")

    def begin_waiting(self, stream: AcceptedStream) -> None:
        """Let a connection wait for its client from now on; ignored for one that is known, or has lost its place."""
        if stream in self._unknown:
            self.end_waiting(stream)
            self._waiting.setdefault(self._machines[stream], {})[stream] = None

    def end_waiting(self, stream: AcceptedStream) -> None:
        """Let a connection keep its place, because the broker works for it. Idempotent."""
        machine = self._machines.get(stream, "")
        waiting = self._waiting.get(machine, {})
        if stream in waiting:
            del waiting[stream]
            if not waiting:
                del self._waiting[machine]

    def know(self, stream: AcceptedStream) -> None:
        """Let a connection keep its place for good, because its client is known."""
        self.end_waiting(stream)
        self._unknown.discard(stream)

    def leave(self, stream: AcceptedStream) -> None:
        """Give a connection's place back. Idempotent."""
        self.know(stream)
        machine = self._machines.pop(stream, None)
        if machine is not None:
            self._counts[machine] -= 1
            if not self._counts[machine]:
                del self._counts[machine]
            if not self._machines:
                self._gone.set()

    async def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until no connection is left, for at most `timeout_s`. Call it when no new ones can come."""
        if self._machines:
            self._gone = trio.Event()
            with trio.move_on_after(timeout_s):
                await self._gone.wait()
